"""What a consumer was given and has not finished: runs, and after a reconnection their new tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.client.machines.returns import Header, Return
from fasti.client.machines.run import Run
from fasti.model import TopicSettings


class Custody:
    """The books of one consumer. `unfinished` counts rows held here and in user code's hands."""

    def __init__(self) -> None:
        # In the order of their arrival; a dict, because runs leave from anywhere.
        self._runs: dict[Run, None] = {}
        # Rows in user code's hands when the connection was lost, until their new tokens come.
        self._in_hand: dict[int, tuple[Run, int]] = {}
        # What comes of a priority topic follows on what was due and came before.
        self._after_us = 0
        self.unfinished = 0

    def decode(self, session: Any, header: Header, batch: pa.RecordBatch, lease_us: int) -> Run:
        """The messages of a `leased` batch. For the thread that reads them, in no step of the machine."""
        ranked = bool(header.get("ranked"))
        run = Run(session, int(header["token"]), batch, ranked, self._after_us if ranked else 0)
        run.came_us = int(header["now_us"])
        if ranked:
            self._after_us = max(self._after_us, run.last_due_us())
        run.leased_us = int(header["leased_us"])
        run.until_us = run.leased_us + lease_us
        return run

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs))

    def add(self, run: Run) -> Run:
        """Takes in what arrived; gives back what of it is new to user code."""
        if self._in_hand:
            run = self._without_known(run)
        if run.rows:
            self._runs[run] = None
            self.unfinished += run.rows
        return run

    def leave(self, run: Run, rows: Any) -> None:
        """Rows of a run are finished, or gone. Each counts once, however often it is told."""
        gone = np.frombuffer(run.gone, dtype=np.uint8)
        gone[rows] = 1
        left = len(gone) - int(np.count_nonzero(gone))
        self.unfinished -= run.left - left
        run.left = left
        if not left:
            self._runs.pop(run, None)

    def release_unstarted(self) -> list[Return]:
        """Gives back what user code was never given."""
        segments = [(run, run.unfinished(run.next, run.rows)) for run in self._runs]
        segments = [(run, rows) for run, rows in segments if len(rows)]
        for run, rows in segments:
            run.finish(rows)
        return [Return("release", None, segments, quiet=True)] if segments else []

    def overdue(self, limit_us: int) -> list[Return]:
        """Gives back what has been due here since before then without being taken.

        User code is busy with something long, or gone: other consumers shall have it meanwhile.
        """
        releases = []
        for run in self._runs:
            if run.came_us < limit_us:
                late = int(np.searchsorted(run.turn_us[run.next : run.rows], limit_us))
                rows = run.unfinished(run.next, run.next + late)
                run.next += late
                if len(rows):
                    run.finish(rows)
                    releases.append(Return("release", None, [(run, rows)], quiet=True))
        return releases

    def renewals(self, limit_us: int, lease_us: int) -> tuple[int, list[Return]]:
        """How many rows user code has had since before then. If there are some, the others are
        renewed by themselves, where a heartbeat would renew all.
        """
        over, others = 0, []
        for run in self._runs:
            rows = run.unfinished(0, run.rows)
            begun = run.started_of(rows)
            late = (begun != 0) & (begun < limit_us)
            over += int(late.sum())
            if not late.all():
                others.append((run, rows[~late]))
        if not over or not others:
            return over, []
        return over, [Return("extend", lease_us, others, quiet=True)]

    def renew(self, sent_us: int, answered_us: int, settings: TopicSettings) -> None:
        """A heartbeat that was written at `sent_us` was answered, both on the broker's clock.

        What had ended before is not alive again by it; when it was written is only an estimate, and
        it may have been long on its way, so the answer counts. And nothing is renewed for longer
        than it may be held at all.
        """
        for run in self._runs:
            if run.until_us > answered_us:
                until_us = min(sent_us + settings.lease_us, run.begun_us() + settings.hold_us)
                run.until_us = max(run.until_us, until_us)

    # Reconnecting

    def take_back(self, returns: Iterable[Return]) -> None:
        """What was not started comes again; what was, or is being returned, gets a new token.

        Acks of single messages are gathered before they are finished, and both without the lock.
        """
        self._in_hand = {}
        for run in list(self._runs):
            run.rows = run.next
            self.leave(run, slice(run.next, None))
        for run in self._runs:
            self._remember(run, run.unfinished(0, run.next))
            self._remember(run, np.array(run.acks, dtype=np.intp))
        self.remember(returns)

    def remember(self, returns: Iterable[Return]) -> None:
        """What is being returned gets a new token too."""
        for returned in returns:
            for run, rows in returned.segments:
                self._remember(run, rows)

    def end_resuming(self) -> None:
        """Everything that was ours has come again by now."""
        self._in_hand = {}

    def _remember(self, run: Run, rows: Any) -> None:
        ids = run.id_list()
        for row in rows.tolist():
            self._in_hand[ids[row]] = (run, row)

    def _without_known(self, run: Run) -> Run:
        """Rows that user code has in its hands learn their new token instead of going there again."""
        fresh = []
        for row, message_id in enumerate(run.id_list()):
            known = self._in_hand.pop(message_id, None)
            # With another attempt it is another delivery: the lease had ended.
            if known is None or known[0].value("attempts", known[1]) != run.value("attempts", row):
                fresh.append(row)
                continue
            old, place = known
            if old.tokens is None:
                old.tokens = {}
            old.tokens[place] = run.token
        if len(fresh) == run.rows:
            return run
        batch = run.batch.take(pa.array(fresh, type=pa.int64()))
        rest = Run(run.session, run.token, batch, run.ranked, int(run.turn_us[0]))
        rest.came_us, rest.leased_us, rest.until_us = run.came_us, run.leased_us, run.until_us
        return rest
