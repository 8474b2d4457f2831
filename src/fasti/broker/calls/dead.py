"""Dead letters by filter: a bounded piece of them a call, and a cursor to go on from.

A call looks at the next dead messages that fit, in id order, and redrives or purges them; what died
meanwhile with a lower id is not met again, so a redrive that goes on failing comes to its end. Within
their topic they live again under their ids. To another topic they are produced there and purged here
in one transaction, with headers that tell where they come from: a message is in one of the topics,
whatever happens in between. One whose key is taken there stays dead and says `conflict`.

Handler threads; everything that changes goes through the shard.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.remembered import change_chosen, recall
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts
from fasti.broker.calls.tally import Tally, last_id
from fasti.broker.reading import MOVED, fetch, redrive
from fasti.core import commands as co
from fasti.core.fields import HEADERS
from fasti.core.log.commands import ListDead
from fasti.core.replies import Messages, Reply, TransactionReply
from fasti.core.traits import KINDS
from fasti.errors import InvalidArgument
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.broker.service import Service

Int64s = NDArray[np.int64]

# What redriven messages tell of their death.
DEAD_TOPIC, DEAD_REASON, DEAD_ATTEMPTS = (
    "fasti-dead-topic",
    "fasti-dead-reason",
    "fasti-dead-attempts",
)

_PIECE_ROWS = 5_000
_PIECE_BYTES = 4 << 20
_REASONS_MAX = 1_000
_FILTER: Header = {
    "topic": str,
    "group": "",
    "reason": None,
    "owner": None,
    "due_from_us": None,
    "due_to_us": None,
    "died_from_us": None,
    "died_to_us": None,
    "after_id": 0,
    "limit": _PIECE_ROWS,
}


def _redrive_dead(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = _checked(header, to=None, delay_us=None, due_us=None)
    fields["limit"] = min(fields["limit"], _PIECE_ROWS)
    when = co.When(requests.integer(fields, "due_us"), requests.integer(fields, "delay_us"))
    if when.due_us is not None and when.delay_us is not None:
        raise InvalidArgument("either due_us or delay_us, not both", field="due_us")
    if (known := recall(service, caller)) is not None:
        return _remembered(service, fields, known, parts), []
    messages = _page(service, fields, _ids(service, fields["topic"], parts))
    tally = Tally()
    target = _text(fields, "to")
    if target is not None and target != fields["topic"]:
        _move(service, caller, fields, target, when, messages, tally)
    elif len(messages.ids):
        reply = _redriven(service, caller, fields, messages.ids, when)
        tally.add(messages.ids, service.mutation("redrive", fields["topic"], reply).status)
    return _answer(service, fields, messages, tally), []


def _purge_dead(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    fields = _checked(header)
    fields["limit"] = min(fields["limit"], _PIECE_ROWS)
    if (known := recall(service, caller)) is not None:
        return _remembered(service, fields, known, parts), []
    messages = _page(service, fields, _ids(service, fields["topic"], parts))
    tally = Tally()
    if len(messages.ids):
        command = co.Purge(fields["topic"], messages.ids, group=fields["group"])
        reply = service.mutation("purge", fields["topic"], change_chosen(service, command, caller))
        tally.add(messages.ids, reply.status)
    return _answer(service, fields, messages, tally), []


def _count_dead(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """How many fit, and how many died of what: all of them, however long that takes."""
    if parts:
        raise InvalidArgument("this action takes no parts", field="parts")
    fields = _checked({"limit": service.limits.page_rows_max, **header})
    reasons: Counter[str] = Counter()
    while True:
        messages = _page(service, fields, None)
        if len(messages.ids):
            numbers, counts = np.unique(messages.columns["reason"], return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                reasons[messages.names["reason"][number]] += count
        fields["after_id"] = messages.next_after_id
        if not messages.next_after_id:
            break
    common = reasons.most_common(_REASONS_MAX)
    summary = {"dead": sum(reasons.values()), "reasons": [list(each) for each in common]}
    return summary | {"reasons_left": len(reasons) - len(common)}, []


# Finding them


def _checked(header: Header, **more: Any) -> Header:
    fields = requests.checked(header, **_FILTER, **more)
    if fields["limit"] < 1:
        raise InvalidArgument("limit must be at least 1", field="limit", limit=1)
    if fields["after_id"] < 0:
        raise InvalidArgument("after_id must be an id, or 0", field="after_id", limit=0)
    for name in ("reason", "owner"):
        fields[name] = _text(fields, name)
    return fields


def _text(fields: Header, name: str) -> str | None:
    """A text that may be null."""
    value = fields[name]
    if value is None:
        return None
    text: str = requests.checked({name: value}, **{name: str})[name]
    return text


def _ids(service: Service, topic: str, parts: Parts) -> Int64s | None:
    """The ids of a part, if only those are meant."""
    if not parts:
        return None
    if len(parts) > 1:
        raise InvalidArgument("this action takes at most one part", field="parts")
    batch = requests.one_batch(parts[0])
    requests.check_columns(batch.schema, {"id": pa.int64()}, "id")
    seed = service.placement.shard_of(topic).store.seed
    ids: Int64s | None = requests.target(batch, seed, service.limits).ids
    if ids is not None and len(ids) > _PIECE_ROWS:
        raise InvalidArgument(f"at most {_PIECE_ROWS} ids", field="id", limit=_PIECE_ROWS)
    return ids


def _page(service: Service, fields: Header, ids: Int64s | None) -> Messages:
    limit = min(fields["limit"], service.limits.page_rows_max)
    if fields["group"]:
        for name in ("owner", "due_from_us", "due_to_us", "died_from_us", "died_to_us"):
            if fields[name] is not None:
                raise InvalidArgument(f"rows of a log can't be selected by {name}", field=name)
        if ids is not None:
            raise InvalidArgument("name rows of a group by redrive and purge", field="parts")
        place = (fields["topic"], fields["group"], fields["after_id"], limit, fields["reason"])
        rows: Messages = service.command(ListDead(*place))
        return rows
    messages: Messages = service.command(
        co.List(
            fields["topic"],
            fields["after_id"],
            limit,
            requests.integer(fields, "due_from_us"),
            requests.integer(fields, "due_to_us"),
            "dead",
            fields["owner"],
            target=None if ids is None else co.Target(ids=ids),
            reason=fields["reason"],
            died_from_us=requests.integer(fields, "died_from_us"),
            died_to_us=requests.integer(fields, "died_to_us"),
        )
    )
    return messages


def _answer(service: Service, fields: Header, messages: Messages, tally: Tally) -> Header:
    return tally.to_dict(messages.next_after_id) | {"left": _left(service, fields)}


def _left(service: Service, fields: Header) -> int:
    left: int = service.command(co.Count(fields["topic"])).states.get("dead", 0)
    return left


def _remembered(service: Service, fields: Header, known: Any, parts: Parts) -> Header:
    """The answer of a call that has happened. To another topic messages went by a transaction: those that
    did not go are still dead, and not told of here.
    """
    reply: Reply = known.replies[0] if isinstance(known, TransactionReply) else known
    next_after_id = 0 if parts else last_id(reply)
    return Tally.of(reply).to_dict(next_after_id) | {"left": _left(service, fields)}


# Within their topic


def _redriven(service: Service, caller: Caller, fields: Header, ids: Int64s, when: co.When) -> Any:
    topic = fields["topic"]
    if fields["group"]:
        command = co.Redrive(topic, ids, None, when, fields["group"])
        return change_chosen(service, command, caller)
    shard = service.placement.shard_of(topic)
    return redrive(shard, topic, ids, when, caller.call, chosen=True)


# To another topic


def _move(
    service: Service,
    caller: Caller,
    fields: Header,
    target: str,
    when: co.When,
    messages: Messages,
    tally: Tally,
) -> None:
    """As many of the page as may be gathered at once; the rest is left to the next call."""
    traits = KINDS[service.require_topic(target).kind]
    if not len(messages.ids):
        return
    contents = _contents(service, fields["topic"], messages)
    count = contents.num_rows
    if count < len(messages.ids):
        messages.next_after_id = int(messages.ids[count - 1])
    ids = messages.ids[:count]
    # What can't be read stays where it is.
    lost = pc.is_null(contents.column("payload")).to_numpy(zero_copy_only=False)
    status = np.where(lost, Outcome.DEAD, Outcome.OK).astype(np.uint8)
    owners = np.array(messages.columns["owner"][:count])
    batch = _produced(service, fields["topic"], messages, contents, when)
    if traits.has_priorities and "priority" in messages.columns:
        numbers = pa.array(np.asarray(messages.columns["priority"][:count], dtype=np.int32))
        batch = batch.append_column("priority", numbers)
    left = np.flatnonzero(~lost)
    # Each round that does not happen finds at least one message that can't go.
    while len(left):
        commands: list[Any] = [co.Purge(fields["topic"], ids[left], group=fields["group"])]
        rows_of = [left]
        for owner in np.unique(owners[left]).tolist():
            mine = left[owners[left] == owner]
            rows_of.append(mine)
            name = messages.names["owner"][owner]
            commands.append(_produce(service, target, name, batch.take(pa.array(mine))))
        reply = change_chosen(service, co.Transaction(commands), caller)
        if reply.committed:
            service.metrics.mutated("redrive", fields["topic"], reply.replies[0].status)
            break
        for rows, each in zip(rows_of, reply.replies, strict=False):
            bad = ~np.isin(each.status, [Outcome.OK, Outcome.ABORTED])
            status[rows[bad]] = each.status[bad]
        kept = left[status[left] == Outcome.OK]
        assert len(kept) < len(left), "what did not happen says why"
        left = kept
    tally.add(ids, status)


def _contents(service: Service, topic: str, messages: Messages) -> pa.RecordBatch:
    shard = service.placement.shard_of(topic)
    locations = messages.columns["location"]
    try:
        return shard.store.payloads.gather(locations, _PIECE_BYTES, lost=True)
    except MOVED:
        count = max(1, _PIECE_BYTES // service.limits.payload_bytes_max)
        return fetch(shard, topic, co.Target(ids=messages.ids[:count]))[1]


def _produced(
    service: Service, topic: str, messages: Messages, contents: pa.RecordBatch, when: co.When
) -> pa.RecordBatch:
    """The messages as the columns of a produce, with headers that tell of their death."""
    limit = service.limits.headers_bytes_max
    reasons, numbers = messages.names["reason"], messages.columns["reason"].tolist()
    attempts = messages.columns["attempts"].tolist()
    headers = [
        _with_death(own or [], topic, reasons[numbers[row]], attempts[row], limit)
        for row, own in enumerate(contents.column("headers").to_pylist())
    ]
    columns = {
        "payload": contents.column("payload"),
        "headers": pa.array(headers, type=HEADERS),
    }
    for name in ("key", "content_type", "subject"):
        if name in contents.schema.names:
            columns[name] = contents.column(name)
    moment = when.due_us if when.due_us is not None else when.delay_us
    if moment is not None:
        name = "due_us" if when.due_us is not None else "delay_us"
        columns[name] = pa.array(np.full(contents.num_rows, moment, dtype=np.int64))
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _with_death(
    own: list[tuple[str, str]], topic: str, reason: str, attempts: int, limit: int
) -> list[tuple[str, str]]:
    """The message's own headers; those of an earlier death are replaced, and never too large."""
    death = ((DEAD_TOPIC, topic), (DEAD_ATTEMPTS, str(attempts)), (DEAD_REASON, reason))
    names = [name for name, _ in death]
    kept = [pair for pair in own if pair[0] not in names]
    size = sum(len(name.encode()) + len(value.encode()) for name, value in kept)
    for name, value in death:
        size += len(name.encode()) + len(value.encode())
        if size > limit:
            break
        kept.append((name, value))
    return kept


def _produce(service: Service, target: str, owner: str, batch: pa.RecordBatch) -> Any:
    return requests.produce(
        batch,
        service.placement.shard_of(target).store.seed,
        service.limits,
        service.clock.now_us(),
        topic=target,
        owner=owner,
    )


ACTIONS: dict[str, Action] = {
    "redrive_dead": _redrive_dead,
    "purge_dead": _purge_dead,
    "count_dead": _count_dead,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
