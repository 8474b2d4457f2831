"""Answers to requests: each goes to the topic that the request named, with the ack of the request.

Of every row both happen or neither: the request is acked and its answer is there. Rows that go to one
place are one transaction, and if that can't be, each row is one of its own. An
answer that nobody waits for any more, because its deadline has passed or its inbox is gone, is dead
from the start, in the topic `_replies`, with its reason; the request is acked all the same, for
there is nothing left to do about it. `_replies` keeps the latest of them.

Handler threads; everything that changes goes through the shard.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, Quick
from fasti.broker.placement import shard_for
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.replies import Reply, TransactionReply, blank
from fasti.core.timeline.bury import Bury
from fasti.errors import FastiError, InvalidArgument, NotFound
from fasti.model import DAY_US, Limits, Outcome, TopicSettings
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
# An inbox may be gone, be bound elsewhere than was known, a row not be possible: found out in turn.
_TRIES = 6
LATE = "too late: the call had ended before its reply came"
NOBODY = "nobody waits: the caller's inbox is gone"


@dataclass(slots=True)
class _Answers:
    """What one call brings: answers in columns, and the acks of their requests, if any."""

    to: list[str]
    # Of each row why it is dead; empty if it is not.
    late: list[str]
    contents: pa.RecordBatch
    acks: co.Ack | None
    found: Reply
    reasons: dict[str, str]

    def command(self, places: list[int]) -> co.Transaction:
        """What is to happen to rows that go to one place, whole or not at all."""
        rows = Rows(_used(self.contents.take(pa.array(places, type=pa.int64()))))
        first = places[0]
        last: Any = (
            Bury(REPLIES, rows, self.late[first])
            if self.late[first]
            else co.Produce(self.to[first], rows)
        )
        return co.Transaction([last] if self.acks is None else [self._ack(places), last])

    def _ack(self, places: list[int]) -> co.Ack:
        whole = self.acks
        assert whole is not None
        started = np.broadcast_to(np.asarray(whole.started_us, dtype=np.int64), len(whole.ids))
        return co.Ack(
            whole.topic, whole.ids[places], whole.tokens[places], started[places], whole.group
        )

    def tell(self, places: list[int], reply: TransactionReply) -> None:
        """What became of these rows, which all happened, or of one that did not."""
        last: Reply = reply.replies[-1]
        if not reply.committed:
            # The request is not (any more) this consumer's to answer.
            failed = [each for each in reply.replies if each.status[0] != Outcome.ABORTED]
            self.found.status[places] = failed[0].status[0] if failed else Outcome.ABORTED
            self.found.versions[places] = last.versions[0]
            return
        self.found.ids[places], self.found.versions[places] = last.ids, last.versions
        for place in places:
            if self.late[place]:
                self.found.status[place] = Outcome.DEAD
                self.reasons[str(place)] = self.late[place]


def _reply(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    if len(parts) not in (1, 2):
        raise InvalidArgument("answers, and the requests that they end", field="parts")
    fields = requests.checked(header, topic="", group="")
    if len(parts) == 2 and not fields["topic"]:
        raise InvalidArgument("'topic' is missing: where the requests are", field="topic")
    if len(parts) == 1 and fields["topic"]:
        raise InvalidArgument("the part with the requests is missing", field="parts")
    answers = _answers(service, fields, parts)
    found = answers.found
    left = _by_place(answers, range(len(found.status)))
    for tries in range(_TRIES):
        left = _carry_out(service, answers, left, last=tries == _TRIES - 1)
        if not left:
            break
    if answers.acks is not None:
        service.note_started(fields["topic"], answers.acks)
    service.metrics.mutated("reply", fields["topic"] or REPLIES, found.status)
    if answers.reasons:
        _bound(service)
    told = outcomes.encode(found)
    return (told | {"reasons": answers.reasons}) if answers.reasons else told, []


def _answers(service: Service, fields: Header, parts: Parts) -> _Answers:
    """Checked as one, so that half of them is not refused."""
    batch = requests.one_batch(parts[0])
    limits: Limits = service.limits
    requests.check_columns(batch.schema, _TYPES, "to")
    requests.check_contents(batch)
    if not 0 < batch.num_rows <= _ROWS_MAX:
        raise InvalidArgument(f"1 to {_ROWS_MAX} answers", field="to", limit=_ROWS_MAX)
    to = batch.column("to").to_pylist()
    if not all(to):
        raise InvalidArgument("an answer has nowhere to go", field="to")
    contents = requests.contents(batch, limits).batch
    acks = None
    if len(parts) == 2:
        named = requests.one_batch(parts[1])
        acks = requests.returned("ack", fields["topic"], fields, named, limits)
        if len(acks.ids) != len(to):
            raise InvalidArgument(f"{len(acks.ids)} requests for {len(to)} answers", field="id")
    late = [""] * len(to)
    if "deadline_us" in batch.schema.names:
        now_us = service.clock.now_us()
        deadlines = batch.column("deadline_us").to_pylist()
        late = [LATE if each is not None and each < now_us else "" for each in deadlines]
    return _Answers(to, late, contents, acks, blank(len(to)), {})


def _used(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that no row uses: they are not written either."""
    names = [n for n in batch.schema.names if batch.column(n).null_count < batch.num_rows]
    return batch.select(names)


def _by_place(answers: _Answers, rows: Iterable[int]) -> list[list[int]]:
    """Rows that go to one place are tried together: mostly all of them may."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        late = answers.late[row]
        found.setdefault(("" if late else answers.to[row], late), []).append(row)
    return list(found.values())


def _carry_out(
    service: Service, answers: _Answers, groups: list[list[int]], last: bool
) -> list[list[int]]:
    """One try at each group; what did not happen is to be tried again, otherwise."""
    # Answers, the requests that they end and late answers are decided in one place.
    shard = shard_for(service.placement, answers.command(groups[0]))
    commands: list[Any] = [answers.command(places) for places in groups]
    for command in commands:
        service.routes.route(command)
    if any(answers.late[places[0]] for places in groups):
        # Made when it is needed. One that exists with other settings is as good.
        # On several shards each has its own partition of it.
        settings = replace(_SETTINGS, partitions=shard.place.count)
        commands.insert(0, co.CreateTopic(REPLIES, settings, is_own=True))
    replies = service.submit(shard, commands).result()[-len(groups) :]
    again: list[list[int]] = []
    for places, reply in zip(groups, replies, strict=True):
        error: FastiError | None = reply.error
        target = answers.to[places[0]]
        if isinstance(error, NotFound) and error.details.get("topic") == target and not last:
            for place in places:
                answers.late[place] = NOBODY
            again.append(places)
        elif not last and service.routes.learn(error):
            again.append(places)
        elif len(places) > 1 and not last and (error is not None or not reply.committed):
            # One of them can't be: each by itself.
            again += [[place] for place in places]
        elif error is not None:
            raise error
        else:
            answers.tell(places, reply)
    return again


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


ACTIONS: dict[str, Action] = {"reply": Quick(_reply)}
TRANSACTION_PARTS: dict[str, PartOf] = {}
