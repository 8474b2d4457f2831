"""Fan-out: what one topic gets goes to the topics bound to it too, in the same moment.

A binding is a pattern and a target. Which rows fit which pattern is worked out by the thread that
received them (broker/routing/routes.py), under a version of the topic's bindings that is compared here: a
batch that was routed under another one is routed anew, or if it is a large one refused and comes
again, so no binding is applied before it was made or after it was removed.

Each message goes to its topic and to all of its targets, or nowhere: a row that one of them can't
take (its key is taken there, say) is put into none and says so. That takes two goes at most. The
first finds the rows that can't be, and is taken back if there are any; the second leaves them out,
and nothing can be in its way any more, because with fewer rows no key is taken that was free
before. In a transaction, and with `atomic`, one such row undoes everything.

Copies share the frame's rows: the journal has a payload once, however many topics get it. Routes are
not followed further, so there are no circles. A topic that is a relay keeps nothing itself.

The sequencer's thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import first_rows, repeated_keys
from fasti.core.commands import Produce
from fasti.core.keys import Rows
from fasti.core.replies import Reply, blank
from fasti.core.routing.commands import Routes
from fasti.core.routing.matching import Matcher, routes_of
from fasti.core.state import Topic
from fasti.core.timeline import produce as timeline
from fasti.core.work import Work
from fasti.errors import FastiError, InvalidArgument, Overloaded
from fasti.model import OnConflict, Outcome

Int64s = NDArray[np.int64]
Mask = NDArray[np.bool_]

# A batch that was routed under other bindings is routed anew by the sequencer, if it has no more
# rows than this.
ROUTED_HERE_MAX = 8_192
_AGAIN_US = 1_000


def produce(work: Work, command: Produce) -> Reply:
    """Into a topic that is bound to others, or keeps nothing itself."""
    topic = work.topic(command.topic)
    if command.producer:
        known = timeline.known_batch(work, command)
        if known is not None:
            return known
    if command.stage:
        raise InvalidArgument("a topic with bindings can't be staged into", field="stage")
    topic.kind.check_produce(work, topic, command)
    fan = _Fan(work, topic, command, _routes(work, topic, command))
    reply = fan.put(None) if work.state.memory.undo.active else _put_what_can_be(fan)
    if command.producer:
        timeline.advance_producer(work, topic, command, reply)
    return reply


def _routes(work: Work, topic: Topic, command: Produce) -> Routes:
    """The command's own, if they are of today; else worked out here, if that is soon done."""
    if not topic.bindings:
        return Routes(topic.bindings_version)
    if command.routes is not None and command.routes.version == topic.bindings_version:
        return command.routes
    if len(command.rows) > ROUTED_HERE_MAX:
        raise Overloaded(
            f"the bindings of {topic.name!r} have changed: once more",
            retry_after_us=_AGAIN_US,
            details={"bindings_of": topic.name, "bindings_version": topic.bindings_version},
        )
    matcher = topic.matcher
    if matcher is None or matcher.version != topic.bindings_version:
        matcher = topic.matcher = Matcher(topic.bindings_version, topic.bindings)
    return routes_of(matcher, command, work.limits)


def _put_what_can_be(fan: _Fan) -> Reply:
    """Rows that can't be put everywhere are put nowhere; the others are not held up by them."""
    reply = _tried(fan, None)
    failed = fan.failed(reply)
    if not failed.any():
        return reply
    fan.work.begin_group()
    if not failed.all():
        again = _tried(fan, ~failed)
        assert not fan.failed(again)[~failed].any(), "what failed before is left out"
        for name in ("status", "ids", "versions"):
            getattr(reply, name)[~failed] = getattr(again, name)[~failed]
    fan.unname_followers(reply, failed)
    return reply


def _tried(fan: _Fan, wanted: Mask | None) -> Reply:
    """Puts rows; if one of them can't be, nothing has happened when this returns."""
    undo = fan.work.state.memory.undo
    fan.work.begin_undo()
    try:
        reply = fan.put(wanted)
    except FastiError:
        undo.rollback()
        fan.work.abandon_group()
        raise
    if fan.failed(reply).any() and wanted is None:
        undo.rollback()
        fan.work.abandon_group()
    else:
        undo.commit()
    return reply


@dataclass(slots=True)
class _Fan:
    """One batch on its way into its topic and those bound to it."""

    work: Work
    topic: Topic
    command: Produce
    routes: Routes

    def put(self, wanted: Mask | None) -> Reply:
        """Puts the rows that are wanted (None: all) wherever they go, as far as they come."""
        work, count = self.work, len(self.command.rows)
        due = work.moments(self.command.when, count)
        places = self._places(wanted)
        whole = blank(count)
        if not self.topic.settings.relay:
            whole.versions[:] = 1
        begin = 0
        for piece in self.command.rows.split():
            work.bring(piece)
            end = begin + len(piece)
            for topic, command, rows in places:
                mine = rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)]
                # What was not taken, or was there before, goes no further.
                mine = mine[whole.status[mine] == Outcome.OK]
                if len(mine):
                    its = _into(work, topic, command, piece, begin, due[begin:end], mine - begin)
                    self._note(whole, topic, its, mine)
            begin = end
        self._count_unrouted(places, wanted)
        return whole

    def _places(self, wanted: Mask | None) -> list[tuple[Topic, Produce, Int64s]]:
        """Every topic that gets something, its own command, and which rows."""
        found: list[tuple[Topic, Produce, Int64s]] = []
        if not self.topic.settings.relay:
            found.append((self.topic, self.command, np.arange(len(self.command.rows))))
        for name, rows in self.routes.targets:
            target = self.work.topic(name)
            ranked = target.kind.traits.has_priorities
            command = replace(
                self.command,
                topic=name,
                partition=None,
                producer="",
                routes=None,
                priorities=self.command.priorities if ranked else None,
            )
            found.append((target, command, rows))
        if wanted is not None:
            found = [(topic, command, rows[wanted[rows]]) for topic, command, rows in found]
        return found

    def failed(self, reply: Reply) -> Mask:
        """Which rows were not taken. Who keeps what is there is content with that."""
        failed: Mask = reply.status != Outcome.OK
        if self.command.on_conflict == OnConflict.KEEP:
            failed &= reply.status != Outcome.DUPLICATE
        return failed

    def _note(self, whole: Reply, topic: Topic, its: Reply, rows: Int64s) -> None:
        """Enters what became of rows in one topic: its own says all, another what went wrong."""
        if topic is not self.topic:
            rows = rows[self.failed(its)[rows]]
        for name in ("status", "ids", "versions"):
            getattr(whole, name)[rows] = getattr(its, name)[rows]
        if its.at_us is not None:
            whole.at_us = (
                np.zeros(len(whole.status), dtype=np.int64)
                if whole.at_us is None
                else (whole.at_us)
            )
            whole.at_us[rows] = its.at_us[rows]
        by = its.by or {}
        if topic is not self.topic:
            by = {row: by.get(row, topic.name) for row in rows.tolist()}
        if by:
            whole.by = {**(whole.by or {}), **by}

    def unname_followers(self, reply: Reply, failed: Mask) -> None:
        """Rows whose key stood earlier in the batch in a row that failed: there is no such message.

        They were judged as if it were there, and it is not. Whoever sends them again is told more.
        """
        keys = self.command.keys
        repeated = None if keys is None else repeated_keys(keys.hashes)
        if keys is None or repeated is None:
            return
        rows = np.flatnonzero(failed & repeated)
        followers = rows[failed[first_rows(keys.hashes)[rows]]]
        reply.status[followers] = Outcome.ABORTED
        reply.ids[followers] = reply.versions[followers] = 0
        for row in followers.tolist():
            (reply.by or {}).pop(row, None)
            if reply.at_us is not None:
                reply.at_us[row] = 0

    def _count_unrouted(
        self, places: list[tuple[Topic, Produce, Int64s]], wanted: Mask | None
    ) -> None:
        """Counts what a relay passed on to nobody, once that stands."""
        if not self.topic.settings.relay:
            return
        lost = np.ones(len(self.command.rows), dtype=np.bool_) if wanted is None else wanted.copy()
        for _, _, rows in places:
            lost[rows] = False
        count, topic = int(lost.sum()), self.topic

        def add() -> None:
            topic.unrouted += count

        if count:
            self.work.state.memory.undo.once_settled(add)


def _into(
    work: Work, topic: Topic, command: Produce, piece: Rows, begin: int, due: Int64s, rows: Int64s
) -> Reply:
    """Rows of the open frame into one topic; the reply has a row for each of the batch's."""
    reply = blank(len(command.rows))
    reply.versions[:] = 1
    topic.kind.put_rows(work, topic, command, piece, begin, due, rows, reply)
    return reply
