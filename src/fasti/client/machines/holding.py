"""Messages that arrived and wait here for their due time: earliest first, none early.

Runs lie in a heap by the turn of their first held row, which is its due time but for priority topics,
whose messages are handed over as they came. Every message is compared with the broker's clock anew
when it is taken, in one step with the rest of the machine, so that what a reconnection takes back
can't be handed out at the same moment.

`Custody` has everything that the consumer was given and has not finished, held here or in user code's
hands; after a reconnection it finds the new tokens of what is in hand.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client.machines.now import Now
from fasti.client.machines.returns import Header, Return
from fasti.client.machines.run import Int64s, Run, RunSession
from fasti.errors import FastiError
from fasti.model import TopicSettings

FAR_US = 1 << 62
_NO_WATCH = -1


class Clock(Protocol):
    """The broker's clock, where it is read once per message."""

    @property
    def unsure_us(self) -> int: ...

    def now_us(self) -> int: ...


class Holding:
    """What one consumer holds. For one caller at a time; what is called otherwise says so.

    `ran_out` is called when a message is wanted and none is here, `lapsed` with one that is due and
    has expired: it is not handed over.
    """

    def __init__(
        self, ran_out: Callable[[], None], lapsed: Callable[[Run, NDArray[np.intp]], None]
    ) -> None:
        self._ran_out, self._lapsed = ran_out, lapsed
        self._returned: deque[Run] = deque()
        self._heap: list[tuple[int, int, Run]] = []
        self._serial = 0
        # Turns beyond this belong to another run than the one that is being taken from.
        self.bound_us = FAR_US
        # A lease ended that was not renewed, because this process hung: nothing of what is held may
        # be handed out until it is known what is still ours.
        self.void = False
        self.fault: FastiError | None = None
        self.ended = False
        # How many takers wait for a message: the shell counts them.
        self.takers = 0
        # What takers wait for may have happened: the shell wakes them and clears it.
        self.changed = False
        # Arrivals that are due before this wake takers.
        self._watched_us = _NO_WATCH
        # The run that is being taken from one by one, while it is not in the heap.
        self._open: Run | None = None

    # What the session asks

    @property
    def holds_any(self) -> bool:
        """Whether a message is here that was not taken, due or not."""
        taken = self._open is None or self._open.next >= self._open.rows
        return not taken or any(run.next < run.rows for _, _, run in self._heap)

    def first_unopened(self, now: Now) -> tuple[tuple[int, int] | None, float]:
        """Which row has been due for longest without being taken, and how long until one is due.

        None if none is due; infinite if none is held.
        """
        heap = self._heap
        while heap and heap[0][2].next >= heap[0][2].rows:
            heapq.heappop(heap)
        wait_s = float("inf")
        for run in (self._open, heap[0][2] if heap else None):
            if run is not None and run.next < run.rows:
                left_s = now.until(int(run.turn_us[run.next]))
                if left_s <= 0:
                    return (run.serial, run.next), 0.0
                wait_s = min(wait_s, left_s)
        return None, wait_s

    def rows_after(self, now_us: int) -> int:
        """How many of those that are held are not due by then."""
        count = 0
        for run in (self._open, *(run for _, _, run in self._heap)):
            if run is not None:
                held = run.turn_us[run.next : run.rows]
                count += len(held) - int(np.searchsorted(held, now_us, side="right"))
        return count

    def first(self) -> tuple[int, Run] | None:
        """The turn of the first message in the heap, and its run; None if there is none to be taken."""
        heap = self._heap
        while heap and not (self.void or self.ended):
            turn_us, serial, run = heap[0]
            if run.next >= run.rows:
                heapq.heappop(heap)
                continue
            first_us = int(run.turn_us[run.next])
            if first_us == turn_us:
                return turn_us, run
            # Some before it went back unopened.
            heapq.heapreplace(heap, (first_us, serial, run))
        return None

    def held_turns(self) -> list[Int64s]:
        """When each message in the heap has its turn; none if nothing may be taken."""
        return [] if self.void else [run.turn_us[run.next : run.rows] for _, _, run in self._heap]

    # What the session does

    def add(self, run: Run) -> None:
        """Messages have arrived, or go back."""
        if run is self._open:
            self._open = None
        if run.next >= run.rows:
            return
        turn_us = int(run.turn_us[run.next])
        if not run.serial:
            self._serial += 1
            run.serial = self._serial
        heapq.heappush(self._heap, (turn_us, run.serial, run))
        if turn_us < self.bound_us:
            self.bound_us = turn_us
        if turn_us < self._watched_us:
            self.stir()

    def drop_all(self) -> None:
        """Nothing of what is held may be handed out any more."""
        for _, _, run in self._heap:
            run.rows = run.next
        self._heap.clear()
        self.void = False
        self.bound_us = -1
        self.stir()

    def fail(self, error: FastiError) -> None:
        """The next call that takes raises it."""
        self.fault = error
        self.bound_us = -1
        self.stir()

    def end(self) -> None:
        """Nothing is handed out any more."""
        self.ended = True
        self.bound_us = -1
        self.stir()

    def stir(self) -> None:
        """Has those who watch look again."""
        if self._watched_us != _NO_WATCH:
            self._watched_us = _NO_WATCH
            self.changed = True

    # Taking

    @property
    def over(self) -> bool:
        """Whether nothing will be handed out any more."""
        return self.ended or self.fault is not None

    def due_run(self, now: Now) -> Run | None:
        """The run whose first held message is due; None if there is none, or at the end.

        The caller takes from it while `bound_us` allows and then gives it to `put_back`. Raises what
        `fail` was given.
        """
        if self.fault is not None:
            raise self.fault
        if self.ended:
            return None
        self.collect()
        if not self._heap or self.void:
            self._ran_out()
            return None
        if now.until(self._heap[0][0]) > 0:
            return None
        run = self._open = heapq.heappop(self._heap)[2]
        self.bound_us = self._heap[0][0] if self._heap else FAR_US
        return run

    def watch(self, now: Now, everything: bool = False) -> float:
        """Seconds until the first held message is due; 0 or less: look now.

        From now on `changed` tells of what is earlier, with `everything` of all that arrives, and of
        the end.
        """
        if self.over:
            return 0.0
        self.collect()
        self._watched_us = FAR_US
        if not self._heap or self.void:
            self._ran_out()
            return float("inf")
        first_us = self._heap[0][0]
        if not everything:
            self._watched_us = first_us
        return now.until(first_us)

    def seconds_until_due(self, count: int, now: Now) -> float:
        """How long until `count` of those held are due; infinite if there are not so many."""
        self.collect()
        held = self.held_turns()
        if sum(map(len, held)) < count:
            return float("inf")
        return now.until(int(np.partition(np.concatenate(held), count - 1)[count - 1]))

    def put_back(self, run: Run) -> None:
        """What was not taken of a run waits on, once `collect` is called. Needs no lock."""
        self._returned.append(run)

    def collect(self) -> None:
        """Takes in what was put back. All that takes or watches calls it."""
        while self._returned:
            run = self._returned.popleft()
            if not self.ended:
                self.add(run)

    def take_now(
        self, lock: AbstractContextManager[Any], clock: Clock, wake: Callable[[], None]
    ) -> tuple[Run, int] | None:
        """The first message if it is due, as its run and row. Arguments as for `take_each`."""
        heap = self._heap
        with lock:
            if self._returned:
                self.collect()
                wake()
            while heap and not (self.void or self.ended or self.fault):
                turn_us, serial, run = heap[0]
                row = run.next
                if row >= run.rows:
                    heapq.heappop(heap)
                    continue
                at_us = clock.now_us()
                turns = run.turn_list()
                if turns[row] != turn_us:
                    # Some before it went back unopened: another run may be earlier now.
                    heapq.heapreplace(heap, (turns[row], serial, run))
                    continue
                if turn_us > at_us:
                    return None
                if at_us + clock.unsure_us >= run.until_us:
                    self._end_unseen()
                    break
                if run.ends is not None and self._skip(run, run.ends, at_us):
                    wake()
                    continue
                run.next = row + 1
                run.started[row] = at_us
                if run.next >= run.rows:
                    heapq.heappop(heap)
                elif turns[run.next] != turn_us:
                    heapq.heapreplace(heap, (turns[run.next], serial, run))
                return run, row
            self._ran_out()
            wake()
        return None

    def take_due(self, run: Run, count: int, now: Now) -> tuple[int, int]:
        """Up to `count` rows of the run that are due now, as [begin, end)."""
        begin = run.next
        if now.us + now.unsure_us >= run.until_us and begin < run.rows:
            self._end_unseen()
        if self.bound_us < 0:
            return begin, begin
        until_us = min(now.us, self.bound_us)
        if run.ends is not None:
            while begin < run.rows and run.turn_us[begin] <= until_us:
                if not self._skip(run, run.ends, now.us):
                    break
                begin = run.next
        due = int(np.searchsorted(run.turn_us[begin : run.rows], until_us, side="right"))
        end = begin + min(due, count)
        if run.ends is not None:
            over = (row for row in range(begin, end) if 0 < run.ends[row] <= now.us)
            end = next(over, end)
        np.frombuffer(run.started, dtype=np.int64)[begin:end] = now.us
        run.next = end
        return begin, end

    def take_each(
        self, run: Run, lock: AbstractContextManager[Any], clock: Clock, wake: Callable[[], None]
    ) -> Iterator[int]:
        """The rows of the run that are due, one by one, as long as none elsewhere is earlier.

        There are hundreds of thousands a second, so each costs no call but that of the clock: the
        shell hands in what it serialises by, which is held for each row by itself, and what looks at
        the machine's flags, which is called with it when one may be set.
        """
        now_us = clock.now_us
        turns, started = run.turn_list(), run.started
        while True:
            with lock:
                row = run.next
                if row >= run.rows:
                    return
                turn_us = turns[row]
                if turn_us > self.bound_us:
                    return
                at_us = now_us()
                if turn_us > at_us:
                    return
                if at_us + clock.unsure_us >= run.until_us:
                    self._end_unseen()
                    wake()
                    return
                if run.ends is not None and self._skip(run, run.ends, at_us):
                    wake()
                    continue
                run.next = row + 1
                started[row] = at_us
            yield row

    def _end_unseen(self) -> None:
        self.void = True
        self.bound_us = -1
        self._ran_out()

    def _skip(self, run: Run, ends: list[int], now_us: int) -> bool:
        """Passes over the next message of a run if it has expired; it goes back as it came."""
        row = run.next
        if not 0 < ends[row] <= now_us:
            return False
        run.next = row + 1
        self._lapsed(run, np.array([row]))
        return True


class Custody:
    """The books of one consumer. `unfinished` counts rows held here and in user code's hands."""

    def __init__(self) -> None:
        # In the order of their arrival; a dict, because runs leave from anywhere.
        self._runs: dict[Run, None] = {}
        # Rows in user code's hands when the connection was lost, until their new tokens come.
        self._in_hand: dict[int, tuple[Run, int]] = {}
        # Rows that nobody had then, until they come again.
        self._to_come: dict[int, tuple[Run, int]] = {}
        # What comes of a priority topic follows on what was due and came before.
        self._after_us = 0
        self.unfinished = 0

    def decode(
        self, session: RunSession, header: Header, content: pa.RecordBatch | bytes, lease_us: int
    ) -> Run:
        """The messages of a `leased` batch, or the one whose payload it is. For the thread that reads
        them, in no step of the machine.
        """
        ranked = bool(header.get("ranked"))
        order = (ranked, self._after_us if ranked else 0)
        run = Run(session, int(header["token"]), content, *order, header.get("row"))
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

    @property
    def unopened(self) -> int:
        """How many of them user code was never given."""
        return sum(len(run.unfinished(run.next, run.rows)) for run in self._runs)

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
        """Gives back what user code was never given; also what was to come again, and never did."""
        segments = [(run, run.unfinished(run.next, run.rows)) for run in self._runs]
        segments = [(run, rows) for run, rows in segments if len(rows)]
        lost: dict[Run, list[int]] = {}
        for run, row in self._to_come.values():
            lost.setdefault(run, []).append(row)
        segments += [(run, np.array(rows, dtype=np.intp)) for run, rows in lost.items()]
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
            for row in run.unfinished(run.next, run.rows).tolist():
                self._to_come[run.id_list()[row]] = (run, row)
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
        self._in_hand, self._to_come = {}, {}

    def _remember(self, run: Run, rows: Any) -> None:
        ids = run.id_list()
        for row in rows.tolist():
            known = self._in_hand.get(ids[row])
            # What goes back of an earlier delivery is not what user code has of a later one.
            if known is None or known[0].leased_us <= run.leased_us:
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
