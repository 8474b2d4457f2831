"""The actions of the protocol, each a function of the service, its caller, header and parts."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker import health
from fasti.broker.caller import Caller
from fasti.broker.calls import (
    backups,
    bulk,
    catalogue_calls,
    changes,
    changing,
    consumers,
    references,
    requests,
    snapshots,
)
from fasti.broker.calls import dead as dead_actions
from fasti.broker.calls import replies as reply_actions
from fasti.broker.calls.catalogue_calls import of_catalogue
from fasti.broker.calls.listing import metadata, with_payloads, with_status
from fasti.broker.calls.requests import (
    Action,
    Answer,
    Header,
    PartOf,
    Parts,
    Quick,
    check_own,
    none,
    one,
)
from fasti.broker.cron import actions as cron_actions
from fasti.broker.kv import actions as kv_actions
from fasti.broker.log import actions as log_actions
from fasti.broker.metrics.counts import INBOX
from fasti.broker.reading import fetch, gather_messages, redrive
from fasti.broker.routing import actions as routing_actions
from fasti.broker.sinks import actions as sink_actions
from fasti.broker.sinks.publishing import publish_stage
from fasti.core import commands as co
from fasti.core.topic_settings import default_settings
from fasti.errors import InvalidArgument
from fasti.protocol import outcomes
from fasti.protocol.schemas import BUCKETS, VERSION

if TYPE_CHECKING:
    from fasti.broker.service import Service


# The broker


def _hello(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    shards = service.placement.shards()
    told = {
        "server": version("fasti"),
        "protocol": VERSION,
        **service.clock.told(),
        "limits": asdict(service.limits),
        "shard": str(shards[0].feed_name) if shards else None,
    }
    return told if service.host is None else {**told, **service.host.hello()}, []


def _clock(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    reading = service.clock.read()
    return {
        "now_us": reading.now_us,
        "steady_us": reading.steady_us,
        "wall_us": reading.wall_us,
        "state": str(reading.state),
        "believed_in_us": reading.believed_in_us,
    }, []


def _accept_clock(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    changed = service.clock.accept()
    host = service.host
    for shard in service.placement.shards() if host is None else host.all_shards():
        shard.record_clock()
        # What is due by it is due now.
        shard.wake()
    return {"changed": changed, "now_us": service.clock.now_us()}, []


def _health(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    return health.report(service), []


def _metrics(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    if service.host is not None:
        return {"text": service.host.metrics_text()}, []
    return {"text": "".join(map(service.metrics.text, service.placement.shards()))}, []


def _cluster(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    view = None if service.host is None else service.host.cluster_view
    if view is None:
        raise InvalidArgument("this broker is not in a cluster")
    return view(), []


def _drain(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, broker=str, undo=False)
    none(parts)
    drain = None if service.host is None else service.host.cluster_drain
    if drain is None:
        raise InvalidArgument("this broker is not in a cluster")
    return drain(fields["broker"], fields["undo"]), []


def _checkpoint(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    within_us = requests.integer(requests.checked(header, within_us=None), "within_us")
    none(parts)
    if within_us is not None and within_us < 0:
        raise InvalidArgument("within_us can't be negative", field="within_us", limit=0)
    for shard in service.placement.shards():
        shard.checkpoint(None if within_us is None else within_us / 1_000_000)
    return {}, []


def _scrub(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """Begins a scrub, unless one is under way."""
    requests.checked(header)
    none(parts)
    for shard in service.placement.shards():
        shard.scrubber.start_pass()
    return _scrub_status(service, caller, header, parts)


def _scrub_status(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    scrubber = service.placement.catalogue.scrubber
    current, last = scrubber.current, scrubber.last
    return {
        "current": None if current is None else current.to_dict(),
        "last": None if last is None else last.to_dict(),
    }, []


# Topics


def _create_topic(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, settings={})
    name: str = fields["topic"]
    check_own(name)
    shards = service.placement.catalogue.place.count
    settings = requests.settings(fields["settings"], default_settings(fields["settings"], shards))
    shares = service.shares
    with service.topic_lock:
        created = not service.topics_of(service.placement.shard_of(name), name)
        with (shares.inboxes if name.startswith(INBOX) else shares.topics).making(caller, name):
            service.command(co.CreateTopic(name, settings))
    return {"created": created, "settings": settings.to_dict()}, []


def _change_topic(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, settings=dict)
    check_own(fields["topic"])
    with service.topic_lock:
        current = service.require_topic(fields["topic"])
        settings = requests.settings(fields["settings"], current)
        service.command(co.ChangeTopic(fields["topic"], settings), caller)
    return {"settings": settings.to_dict()}, []


def _delete_topic(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str)
    check_own(fields["topic"])
    left = references.references_to(service, fields["topic"])
    with service.topic_lock:
        service.command(co.DeleteTopic(fields["topic"]), caller)
        service.topic_gone(fields["topic"])
    references.log_deletion(fields["topic"], left)
    return {}, []


def _topic(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str)
    topic = service.topic(fields["topic"])
    described = {"settings": topic.settings.to_dict(), "paused": topic.paused}
    return described | _counted(service, fields["topic"]), []


def _topics(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    requests.checked(header)
    none(parts)
    described: list[Header] = []
    for shard in service.placement.shards():
        topics = sorted(service.topics_of(shard), key=lambda topic: topic.name)
        counts = [co.Count(topic.name) for topic in topics]
        replies = shard.submit(counts).result() if counts else []
        described += [
            {
                "topic": topic.name,
                "settings": topic.settings.to_dict(),
                "paused": topic.paused,
                "counts": reply.states,
                "position": reply.position,
            }
            for topic, reply in zip(topics, replies, strict=True)
            # One that was deleted in between is not there.
            if reply.error is None
        ]
    return {"shard": str(service.placement.catalogue.feed_name), "topics": described}, []


# Messages


def _get(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, topic=str, payload=True)
    shard = service.placement.shard_of(fields["topic"])
    target = requests.target(one(parts), shard.store.seed, service.limits)
    if fields["payload"]:
        found, contents = fetch(shard, fields["topic"], target, gather_messages)
        batch = with_payloads(metadata(found), contents)
    else:
        found = service.command(co.Get(fields["topic"], target))
        batch = metadata(found)
    return {}, [with_status(batch, found.status)]


def _update(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    return _changed(service, caller, "update", header, parts)


def _move(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    return _changed(service, caller, "move", header, parts)


def _cancel(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    return _changed(service, caller, "cancel", header, parts)


def _changed(service: Service, caller: Caller, op: str, header: Header, parts: Parts) -> Answer:
    part = requests.only(parts)
    fields = requests.checked(header, topic=str, owner="", dry_run=False)
    reply = service.command(changing.command(service, op, fields, part), caller)
    if not fields["dry_run"]:
        service.mutation(op, fields["topic"], reply)
    return outcomes.encode(reply), []


def _returned(op: str) -> Action:
    def carry_out(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
        fields = requests.checked(header, topic=str, **requests.returned_fields(op))
        batch = one(parts)
        command = requests.returned(op, fields["topic"], fields, batch, service.limits)
        service.note_started(fields["topic"], command)
        reply = service.mutation(op, fields["topic"], service.command(command, caller))
        return outcomes.encode(reply), []

    return carry_out


def _dead_ids(service: Service, topic: str, parts: Parts) -> Any:
    batch = one(parts)
    requests.check_columns(batch.schema, {"id": pa.int64()}, "id")
    seed = service.placement.shard_of(topic).store.seed
    return requests.target(batch, seed, service.limits).ids


def _redrive(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, topic=str, group="", delay_us=None, due_us=None)
    when = co.When(requests.integer(fields, "due_us"), requests.integer(fields, "delay_us"))
    topic, group = fields["topic"], fields["group"]
    ids = _dead_ids(service, topic, parts)
    if group:
        # In a log a key only chooses the partition: nobody has to claim it again.
        reply = service.command(co.Redrive(topic, ids, when=when, group=group), caller)
    else:
        reply = redrive(service.placement.shard_of(topic), topic, ids, when, caller.call)
    return outcomes.encode(service.mutation("redrive", fields["topic"], reply)), []


def _purge(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, topic=str, group="")
    command = co.Purge(fields["topic"], _dead_ids(service, fields["topic"], parts), fields["group"])
    reply = service.command(command, caller)
    return outcomes.encode(service.mutation("purge", fields["topic"], reply)), []


def _count(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str)
    return _counted(service, fields["topic"]), []


def _counted(service: Service, topic: str) -> Header:
    """Exact counts, and the position in the change feed at which they hold."""
    found = service.command(co.Count(topic))
    return {
        "counts": found.states,
        "shard": str(service.placement.shard_of(topic).feed_name),
        "position": found.position,
    }


def _forecast(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, from_us=int, to_us=int, bucket_us=int)
    found = service.command(co.Forecast(**fields))
    arrays = [pa.array(found.start_us), pa.array(found.count)]
    return {}, [pa.RecordBatch.from_arrays(arrays, schema=BUCKETS)]


# Several at once


def _transaction(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    listed = requests.checked(header, commands=list)["commands"]
    if len(listed) != len(parts):
        raise InvalidArgument("a transaction has a part for each command", field="parts")
    commands, topics = [], []
    for fields, part in zip(listed, parts, strict=True):
        if not isinstance(fields, dict):
            raise InvalidArgument("a command must be an object", field="commands")
        commands.append(_part_of(service, dict(fields), requests.one_batch(part)))
        topics.append((fields["op"], fields["topic"]))
    reply = service.command(co.Transaction(commands), caller)
    if reply.committed:
        for (op, topic), command, each in zip(topics, commands, reply.replies, strict=True):
            service.note_started(topic, command)
            service.metrics.mutated(op, topic, each.status)
    told = [outcomes.encode(each) for each in reply.replies]
    return {"committed": reply.committed, "outcomes": told}, []


def _part_of(service: Service, fields: Header, batch: pa.RecordBatch) -> Any:
    op = fields.pop("op", None)
    if op == "produce":
        fields = requests.checked(fields, topic=str, owner="", on_conflict="reject", partition=None)
        requests.integer(fields, "partition")
        seed = service.placement.shard_of(fields["topic"]).store.seed
        return requests.produce(batch, seed, service.limits, service.clock.now_us(), **fields)
    if op in ("update", "move", "cancel"):
        fields = requests.checked(fields, topic=str, owner="")
        return changing.command(service, op, fields, batch)
    if op in requests.RETURNS:
        fields = requests.checked(fields, topic=str, **requests.returned_fields(op))
        return requests.returned(op, fields["topic"], fields, batch, service.limits)
    if op in _PARTS:
        return _PARTS[op](service, fields, batch)
    raise InvalidArgument(f"a transaction has no command {op!r}", field="op")


def _publish(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, stage=str, skip_conflicts=False)
    rows, taken = publish_stage(service, caller, **fields)
    skipped = pa.RecordBatch.from_arrays([pa.array(taken, type=pa.int64())], names=["id"])
    return {"rows": int(rows)}, [skipped]


def _drop_stage(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, stage=str)
    return {"rows": int(service.command(co.DropStage(**fields), caller).value)}, []


_MORE = (
    backups,
    bulk,
    catalogue_calls,
    changes,
    consumers,
    cron_actions,
    dead_actions,
    kv_actions,
    log_actions,
    references,
    reply_actions,
    routing_actions,
    sink_actions,
    snapshots,
)
ACTIONS: dict[str, Action] = {
    "hello": _hello,
    "clock": _clock,
    "accept_clock": _accept_clock,
    "health": _health,
    "metrics": _metrics,
    "cluster": _cluster,
    "drain": _drain,
    "checkpoint": _checkpoint,
    "scrub": _scrub,
    "scrub_status": _scrub_status,
    "create_topic": of_catalogue(_create_topic),
    "change_topic": of_catalogue(_change_topic),
    "delete_topic": of_catalogue(_delete_topic),
    "topic": _topic,
    "topics": _topics,
    "get": Quick(_get),
    "update": Quick(_update),
    "move": Quick(_move),
    "cancel": Quick(_cancel),
    **{op: Quick(_returned(op)) for op in sorted(requests.RETURNS)},
    "redrive": _redrive,
    "purge": _purge,
    "count": Quick(_count),
    "forecast": _forecast,
    "transaction": Quick(_transaction),
    "publish": _publish,
    "drop_stage": _drop_stage,
    **{name: action for more in _MORE for name, action in more.ACTIONS.items()},
}
_PARTS: dict[str, PartOf] = {
    name: part for more in _MORE for name, part in more.TRANSACTION_PARTS.items()
}
