"""Answers to requests: each goes to the topic that the request named, with the ack of the request.

Every row is a transaction of its own: the request is acked and its answer is there, or neither. An
answer that nobody waits for any more, because its deadline has passed or its inbox is gone, is dead
from the start, in the topic `_replies`, with its reason; the request is acked all the same, for
there is nothing left to do about it. `_replies` keeps the latest of them.

Handler threads; everything that changes goes through the shard.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.broker import requests
from fasti.broker.parts import Action, Answer, Header, PartOf, Parts
from fasti.core import commands as co
from fasti.core.bury import Bury
from fasti.core.judging import blank
from fasti.core.keys import Rows
from fasti.errors import FastiError, InvalidArgument, NotFound
from fasti.model import DAY_US, Outcome, TopicSettings
from fasti.protocol import outcomes
from fasti.protocol.schemas import REPLIED

if TYPE_CHECKING:
    from fasti.broker.service import Service

REPLIES = "_replies"
# Answers that came too late are for people to look at: not for ever, and not without end.
_SETTINGS = TopicSettings(max_attempts=1, idle_age_us=30 * DAY_US)
_KEPT_ROWS = 100_000
_PURGED_ROWS = 10_000
_TYPES = {field.name: field.type for field in REPLIED}
_ROWS_MAX = 1_000
# An inbox may be gone, or be bound elsewhere than was known: each is found out once.
_TRIES = 4


@dataclass(slots=True)
class _Row:
    """One answer on its way."""

    to: str
    rows: Rows
    late: str
    ack: co.Ack | None

    def command(self) -> co.Transaction:
        """What is to happen, whole or not at all."""
        if self.late:
            last: Any = Bury(REPLIES, self.rows, self.late)
        else:
            last = co.Produce(self.to, self.rows)
        return co.Transaction([last] if self.ack is None else [self.ack, last])


def _reply(service: Service, header: Header, parts: Parts) -> Answer:
    if len(parts) not in (1, 2):
        raise InvalidArgument("answers, and the requests that they end", field="parts")
    fields = requests.checked(header, topic="", group="")
    answers = requests.one_batch(parts[0])
    limits = service.shard.settings.limits
    acks: list[co.Ack | None] = [None] * answers.num_rows
    if len(parts) == 2 and not fields["topic"]:
        raise InvalidArgument("'topic' is missing: where the requests are", field="topic")
    if len(parts) == 2:
        acks = _acks(fields, requests.one_batch(parts[1]), answers.num_rows, limits)
    elif fields["topic"]:
        raise InvalidArgument("the part with the requests is missing", field="parts")
    rows = _rows(service, answers, acks)
    found = blank(len(rows))
    reasons: dict[str, str] = {}
    left = list(range(len(rows)))
    for tries in range(_TRIES):
        left = _carry_out(service, rows, left, found, reasons, last=tries == _TRIES - 1)
        if not left:
            break
    for row in rows:
        if row.ack is not None:
            service.note_started(fields["topic"], row.ack)
    service.metrics.mutated("reply", fields["topic"] or REPLIES, found.status)
    if reasons:
        _bound(service)
    told = outcomes.encode(found)
    return (told | {"reasons": reasons}) if reasons else told, []


def _acks(fields: Header, batch: pa.RecordBatch, count: int, limits: Any) -> list[co.Ack | None]:
    """The ack of each request by itself."""
    whole = requests.returned("ack", fields["topic"], fields, batch, limits)
    if len(whole.ids) != count:
        raise InvalidArgument(f"{len(whole.ids)} requests for {count} answers", field="id")
    started = np.broadcast_to(np.asarray(whole.started_us, dtype=np.int64), len(whole.ids))
    return [
        co.Ack(
            whole.topic,
            whole.ids[row : row + 1],
            whole.tokens[row : row + 1],
            started[row : row + 1].copy(),
            whole.group,
        )
        for row in range(count)
    ]


def _rows(service: Service, batch: pa.RecordBatch, acks: list[co.Ack | None]) -> list[_Row]:
    requests.check_columns(batch.schema, _TYPES, "to")
    requests.check_contents(batch)
    if not 0 < batch.num_rows <= _ROWS_MAX:
        raise InvalidArgument(f"1 to {_ROWS_MAX} answers", field="to", limit=_ROWS_MAX)
    targets = batch.column("to").to_pylist()
    if not all(targets):
        raise InvalidArgument("an answer has nowhere to go", field="to")
    # Checked as one, so that half of them is not refused.
    contents = requests.contents(batch, service.shard.settings.limits).batch
    now_us = service.shard.clock.now_us()
    deadlines = (
        batch.column("deadline_us").to_pylist()
        if "deadline_us" in batch.schema.names
        else [None] * len(targets)
    )
    found = []
    for row, (to, deadline_us) in enumerate(zip(targets, deadlines, strict=True)):
        late = ""
        if deadline_us is not None and now_us > deadline_us:
            late_s = (now_us - deadline_us) / 1_000_000
            late = f"too late: the call ended {late_s:.3f} s before its reply"
        found.append(_Row(to, Rows(_used(contents.slice(row, 1))), late, acks[row]))
    return found


def _used(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that the row does not use: they are not written either."""
    names = [n for n in batch.schema.names if not batch.column(n).null_count]
    return batch.select(names)


def _carry_out(
    service: Service,
    rows: list[_Row],
    places: list[int],
    found: Any,
    reasons: dict[str, str],
    last: bool,
) -> list[int]:
    """One try at each; those whose inbox was gone are to be tried again, as dead ones."""
    commands: list[Any] = [rows[place].command() for place in places]
    for command in commands:
        if isinstance(command.commands[-1], co.Produce):
            service.routes.route(command.commands[-1])
    if any(rows[place].late for place in places):
        # Made when it is needed. One that exists with other settings is as good.
        commands.insert(0, co.CreateTopic(REPLIES, _SETTINGS))
    replies = service.submit(commands).result()[-len(places) :]
    again = []
    for place, reply in zip(places, replies, strict=True):
        row = rows[place]
        error: FastiError | None = reply.error
        if isinstance(error, NotFound) and error.details.get("topic") == row.to and not row.late:
            row.late = "nobody waits: the caller's inbox is gone"
            again.append(place)
            continue
        if not last and service.routes.learn(error):
            again.append(place)
            continue
        if error is not None:
            raise error
        _tell(row, place, reply, found, reasons)
    return again


def _tell(row: _Row, place: int, reply: Any, found: Any, reasons: dict[str, str]) -> None:
    last = reply.replies[-1]
    found.ids[place], found.versions[place] = last.ids[0], last.versions[0]
    if not reply.committed:
        # The request is not (any more) this consumer's to answer.
        failed = [each for each in reply.replies if each.status[0] != Outcome.ABORTED]
        found.status[place] = failed[0].status[0] if failed else Outcome.ABORTED
    elif row.late:
        found.status[place] = Outcome.DEAD
        reasons[str(place)] = row.late


_bounding = threading.Lock()


def _bound(service: Service) -> None:
    """Of the answers that came too late the oldest go, when there are too many."""
    if not _bounding.acquire(blocking=False):
        return
    try:
        if service.command(co.Count(REPLIES)).states["dead"] <= _KEPT_ROWS:
            return
        oldest = service.command(co.List(REPLIES, limit=_PURGED_ROWS, state="dead"))
        service.command(co.Purge(REPLIES, oldest.ids))
    except NotFound:
        pass
    finally:
        _bounding.release()


ACTIONS: dict[str, Action] = {"reply": _reply}
TRANSACTION_PARTS: dict[str, PartOf] = {}
