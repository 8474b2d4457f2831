"""Who consumes and from where, taking leases back, and pausing topics: an operator's calls.

The engine knows names, credits and leases; the wire knows who is connected, since when, and when
each was last heard of. Handler threads.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.catalogue_calls import of_catalogue
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, check_own, none, one
from fasti.core import commands as co
from fasti.core.delivery.consumers import ConsumerRow
from fasti.core.delivery.verbs import RELEASED_PER_CALL, check_release
from fasti.errors import InvalidArgument
from fasti.protocol import outcomes

if TYPE_CHECKING:
    from fasti.broker.calls.subscription import Subscription
    from fasti.broker.service import Service

# So many are described; more than a person looks at, and less than fills a message.
_ROWS_MAX = 10_000


def _consumers(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic="")
    topic, rows = fields["topic"], list[ConsumerRow]()
    for shard in [service.placement.shard_of(topic)] if topic else service.placement.shards():
        reply = shard.call(co.DescribeConsumers(topic))
        if reply.error is not None:
            raise reply.error
        rows += reply.value
    connected = service.subscriptions()
    consumers = [_describe(row, connected.get(row.session)) for row in rows[:_ROWS_MAX]]
    now_us = service.clock.now_us()
    return {"consumers": consumers, "count": len(rows), "now_us": now_us}, []


def _describe(row: ConsumerRow, session: Subscription | None) -> Header:
    described = asdict(row)
    del described["session"]
    for name in ("oldest_lease_us", "lease_until_us"):
        described[name] = described[name] or None
    described |= {"connected": session is not None, "peer": None, "connected_us": None}
    described |= {"active_us": None, "heard_us": None}
    if session is not None:
        described |= session.presence()
    return described


def _release_leases(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = requests.checked(header, topic=str, consumer="", group="")
    command = co.ReleaseLeases(fields["topic"], fields["consumer"], group=fields["group"])
    if parts:
        batch = one(parts)
        requests.check_columns(batch.schema, {"id": pa.int64()}, "id")
        seed = service.placement.shard_of(command.topic).store.seed
        command.ids = requests.target(batch, seed, service.limits).ids
        if batch.num_rows > RELEASED_PER_CALL:
            raise InvalidArgument(
                f"at most {RELEASED_PER_CALL} messages a call", field="id", limit=RELEASED_PER_CALL
            )
    check_release(command)
    if command.consumer:
        # One that doesn't react would get the same messages at once: not before it is heard.
        for session in service.subscriptions().values():
            named = session.consumes(command.topic, command.group, command.consumer)
            if named and session.on_network:
                session.hearing.hold_back()
    reply = service.mutation("release", fields["topic"], service.command(command, caller))
    return outcomes.encode(reply), []


def _pause(paused: bool) -> Action:
    def carry_out(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
        none(parts)
        fields = requests.checked(header, topic=str)
        check_own(fields["topic"])
        changed = service.command(co.PauseTopic(fields["topic"], paused), caller).value
        return {"paused": paused, "changed": changed}, []

    return carry_out


ACTIONS: dict[str, Action] = {
    "consumers": _consumers,
    "release_leases": _release_leases,
    "pause_topic": of_catalogue(_pause(True)),
    "resume_topic": of_catalogue(_pause(False)),
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
