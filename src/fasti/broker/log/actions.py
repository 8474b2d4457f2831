"""The actions of logs and of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.listing import metadata, with_payloads
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.log.reads import EARLIEST, KnownLog, offset_at, start_of
from fasti.broker.reading import MOVED, fetch
from fasti.core.commands import Target
from fasti.core.log import commands as lo
from fasti.core.replies import Messages
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.broker.service import Service

# Payloads of one answer: more of them come with the next page.
_PAYLOAD_BYTES = 16 << 20
_PLACE: Header = {"offset": None, "offsets": {}, "time_us": None, "start": ""}


# Logs


def _log(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    topic = requests.checked(header, topic=str)["topic"]
    partitions = _numbers_of(KnownLog(service, topic))
    # Offsets mean nothing in a log that was deleted and made again under the same name.
    shard = service.placement.shard_of(topic)
    known = shard.engine.state.by_name.get(topic)
    number = known.number if known is not None else 0
    identity = f"{shard.feed_name}:{number}"
    return {"identity": identity, "partitions": partitions}, []


def _offsets(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, time_us=int, partition=None)
    topic, partition = fields["topic"], requests.integer(fields, "partition")
    chosen = KnownLog(service, topic).chosen(partition)
    offsets = {str(n): offset_at(service, topic, n, fields["time_us"]) for n in chosen}
    return {"offsets": offsets}, []


def _truncate(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(
        header, topic=str, partition=None, before=None, time_us=None, start=""
    )
    topic, partition = fields["topic"], requests.integer(fields, "partition")
    before, time_us = requests.integer(fields, "before"), requests.integer(fields, "time_us")
    if (before is not None) + (time_us is not None) + bool(fields["start"]) != 1:
        raise InvalidArgument("one of before, time_us and start is needed", field="before")
    known = KnownLog(service, topic)
    chosen = known.chosen(partition)
    if before is not None and len(chosen) > 1:
        raise InvalidArgument(
            "an offset belongs to one partition: name the partition", field="partition"
        )
    for number in chosen:
        below = _below(service, fields, number, known)
        service.command(lo.Truncate(topic, number, below), caller, number)
    return {"partitions": _numbers_of(KnownLog(service, topic))}, []


def _numbers_of(known: KnownLog) -> list[Header]:
    return list(known.partitions.values())


def _below(service: Service, fields: Header, number: int, known: KnownLog) -> int:
    if fields["time_us"] is not None:
        return offset_at(service, fields["topic"], number, fields["time_us"])
    if fields["start"]:
        latest = start_of(fields["start"]) != EARLIEST
        return int(known.partitions[number]["end" if latest else "earliest"])
    return int(fields["before"])


# Groups


def _groups(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, group="")
    command = lo.DescribeGroups(fields["topic"], fields["group"])
    return {"groups": service.command(command).value}, []


def _create_group(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, group=str, ordered=False, partition=None, **_PLACE)
    partition = requests.integer(fields, "partition")
    if partition is not None:
        raise InvalidArgument("a group has all partitions: give offsets", field="partition")
    known = KnownLog(service, fields["topic"])
    where = np.full(known.count, EARLIEST, dtype=np.int64)
    for number, offset in _places(service, fields, None, known).items():
        where[number] = offset
    command = lo.CreateGroup(fields["topic"], fields["group"], where, fields["ordered"])
    service.command(command, caller)
    return _describe_group(service, fields)


def _reset_group(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, group=str, partition=None, **_PLACE)
    topic, group = fields["topic"], fields["group"]
    if all(fields[name] in (None, "", {}) for name in _PLACE):
        raise InvalidArgument("one of offset, offsets, time_us and start is needed", field="start")
    known = KnownLog(service, topic)
    places = _places(service, fields, requests.integer(fields, "partition"), known)
    if places.keys() == known.partitions.keys():
        where = np.full(known.count, EARLIEST, dtype=np.int64)
        where[list(places)] = list(places.values())
        service.command(lo.ResetGroup(topic, group, where), caller)
    else:
        for number, offset in places.items():
            service.command(lo.ResetGroup(topic, group, offset, number), caller, number)
    return _describe_group(service, fields)


def _places(
    service: Service, fields: Header, partition: int | None, known: KnownLog
) -> dict[int, int]:
    """Offsets by partition: of those that are meant, EARLIEST and LATEST as they are."""
    given = [name for name in _PLACE if fields[name] not in (None, "", {})]
    if len(given) > 1:
        raise InvalidArgument(f"{given[0]} and {given[1]} can't be used together", field=given[1])
    if fields["offsets"]:
        if partition is not None:
            raise InvalidArgument(
                "offsets name their partitions: leave partition out", field="partition"
            )
        return known.named_offsets(fields["offsets"])
    chosen = known.chosen(partition)
    offset, time_us = requests.integer(fields, "offset"), requests.integer(fields, "time_us")
    if offset is not None:
        if len(chosen) > 1:
            raise InvalidArgument(
                "an offset belongs to one partition: name the partition", field="partition"
            )
        return {chosen[0]: offset}
    if time_us is not None:
        return {n: offset_at(service, fields["topic"], n, time_us) for n in chosen}
    return dict.fromkeys(chosen, start_of(fields["start"] or "earliest"))


def _describe_group(service: Service, fields: Header) -> Answer:
    command = lo.DescribeGroups(fields["topic"], fields["group"])
    return {"group": service.command(command).value[0]}, []


def _delete_group(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, group=str)
    service.command(lo.DeleteGroup(fields["topic"], fields["group"]), caller)
    return {}, []


# The dead


def _dead(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(
        header, topic=str, group=str, after_id=0, limit=1000, reason=None, payload=False
    )
    reason = fields["reason"]
    if reason is not None and not isinstance(reason, str):
        raise InvalidArgument("'reason' must be a JSON string", field="reason")
    if fields["limit"] < 0:
        raise InvalidArgument("a limit can't be negative", field="limit", limit=0)
    messages: Messages = service.command(
        lo.ListDead(
            fields["topic"], fields["group"], fields["after_id"], max(1, fields["limit"]), reason
        )
    )
    count = len(messages.ids) if fields["limit"] else 0
    if not fields["payload"]:
        return {"next_after_id": messages.next_after_id}, [metadata(messages).slice(0, count)]
    count, contents = _contents(service, fields["topic"], messages, count)
    if count < len(messages.ids):
        messages.next_after_id = int(messages.ids[count - 1]) if count else 0
    batch = with_payloads(metadata(messages).slice(0, count), contents)
    return {"next_after_id": messages.next_after_id}, [batch]


def _contents(
    service: Service, topic: str, messages: Messages, count: int
) -> tuple[int, pa.RecordBatch]:
    """The contents of dead rows, of as many as fit one answer."""
    shard = service.placement.shard_of(topic)
    locations = messages.columns["location"][:count]
    try:
        contents = shard.store.payloads.gather(locations, _PAYLOAD_BYTES, lost=True)
    except MOVED:
        _, contents = fetch(shard, topic, Target(ids=messages.ids[:count]))
    return contents.num_rows, contents


ACTIONS: dict[str, Action] = {
    "dead": _dead,
    "log": _log,
    "offsets": _offsets,
    "truncate": _truncate,
    "groups": _groups,
    "create_group": _create_group,
    "reset_group": _reset_group,
    "delete_group": _delete_group,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
