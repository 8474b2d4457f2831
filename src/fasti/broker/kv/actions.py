"""Actions on key-value topics: put, get and delete by key, and what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, Quick, none, one
from fasti.broker.kv import requests as kv_requests
from fasti.broker.kv.reading import entries_batch, fetch
from fasti.core.kv.commands import KvDelete, KvDescribe, KvGet, KvPut
from fasti.model import Outcome
from fasti.protocol import outcomes
from fasti.protocol.schemas import STATUS

if TYPE_CHECKING:
    from fasti.broker.service import Service

_WORDS = pa.array([outcome.word for outcome in Outcome])
_TOLD = ("entries", "expiring", "removed", "partitions", "position")


def _put(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    return _change(service, caller, "kv_put", header, one(parts))


def _delete(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    return _change(service, caller, "kv_delete", header, one(parts))


def _change(
    service: Service, caller: Caller, op: str, header: Header, batch: pa.RecordBatch
) -> Answer:
    command = TRANSACTION_PARTS[op](service, header, batch)
    reply = service.mutation(op, command.topic, service.command(command, caller))
    return outcomes.encode(reply, with_ids=False), []


def _put_part(service: Service, header: Header, batch: pa.RecordBatch) -> KvPut:
    topic = requests.checked(header, topic=str)["topic"]
    shard = service.placement.shard_of(topic)
    return kv_requests.put(batch, topic, shard.store.seed, service.limits)


def _delete_part(service: Service, header: Header, batch: pa.RecordBatch) -> KvDelete:
    topic = requests.checked(header, topic=str)["topic"]
    shard = service.placement.shard_of(topic)
    return kv_requests.delete(batch, topic, shard.store.seed, service.limits)


def _get(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, topic=str, value=True)
    shard, batch = service.placement.shard_of(fields["topic"]), one(parts)
    keys = kv_requests.names(batch, shard.store.seed, service.limits)
    found, contents = fetch(shard, KvGet(fields["topic"], keys), fields["value"])
    named = batch.column("key")
    clustering = pa.nulls(len(named), pa.string())
    if "clustering" in batch.schema.names:
        clustering = batch.column("clustering")
    entries = entries_batch(found, contents, named, clustering)
    words = _WORDS.take(pa.array(found.status))
    schema = pa.schema([*entries.schema, STATUS])
    whole = pa.RecordBatch.from_arrays([*entries.columns, words], schema=schema)
    return {"position": found.position}, [whole]


def _describe(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    topic = requests.checked(header, topic=str)["topic"]
    found: dict[str, Any] = service.command(KvDescribe(topic)).value
    return {name: int(found[name]) for name in _TOLD}, []


ACTIONS: dict[str, Action] = {
    "kv_put": Quick(_put),
    "kv_get": Quick(_get),
    "kv_delete": Quick(_delete),
    "kv_describe": _describe,
}
TRANSACTION_PARTS: dict[str, PartOf] = {"kv_put": _put_part, "kv_delete": _delete_part}
