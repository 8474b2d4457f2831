"""What the sessions of one consumer hold, taken from as if it were one holding.

Each session has messages of its own shard, under the clock of its own broker. The earliest due comes
first, as far as it is here; none is handed over before it is due on the clock of the broker that leased it.
Due times of two shards that are less than a millisecond apart are not told apart (for large batches: less
than a tenth of a second): brokers' clocks are no closer, and rows that came together are taken together.

What is due and here for `PATIENCE_US` goes before those that came later, whatever their due times: a shard
with a long backlog does not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from fasti.client.machines.holding import FAR_US, Clock, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.places import Places
from fasti.client.machines.run import Run
from fasti.errors import FastiError

PATIENCE_US = 40_000
_APART_US = 1_000
# Of batches of so many rows.
_BATCH_ROWS, _BATCH_APART_US = 256, 100_000
_SERIAL: AbstractContextManager[Any] = nullcontext()


class Clocks(Protocol):
    """The clocks of a session."""

    def now(self) -> Now: ...


class Source(Protocol):
    """A session, as far as taking its messages needs it."""

    @property
    def holding(self) -> Holding: ...
    @property
    def clock(self) -> Clock: ...

    @property
    def taking(self) -> Clocks: ...
    def wake(self) -> None: ...


class Holdings:
    """All of one consumer. For one caller at a time; what is called otherwise says so."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._sources: list[Source] = []
        self._ended = False
        self._takers = 0
        # Until when the run that was given last may be taken from, by what its session holds and by
        # what the others do.
        self._own_us = self._others_us = FAR_US
        # The turn of its first row, which is taken in any case.
        self._first_us = 0

    def add(self, source: Source) -> None:
        """A session begins."""
        self._sources.append(source)
        source.holding.takers = self._takers
        if self._ended:
            source.holding.end()

    # As a holding

    @property
    def takers(self) -> int:
        """How many takers wait for a message."""
        return self._takers

    @takers.setter
    def takers(self, count: int) -> None:
        self._takers = count
        for source in self._sources:
            source.holding.takers = count

    @property
    def ended(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._ended

    def end(self) -> None:
        """Nothing is handed out any more."""
        self._ended = True
        for source in self._sources:
            source.holding.end()

    @property
    def fault(self) -> FastiError | None:
        """What ended a session."""
        faults = (source.holding.fault for source in self._sources)
        return next((fault for fault in faults if fault is not None), None)

    @property
    def over(self) -> bool:
        """Whether nothing will be handed out any more."""
        return self._ended or self.fault is not None

    def stir(self) -> None:
        """Has those who watch look again."""
        for source in self._sources:
            source.holding.stir()

    def collect(self) -> None:
        """Takes in what was put back."""
        for source in self._sources:
            source.holding.collect()

    def put_back(self, run: Run) -> None:
        """What was not taken of a run waits on. Needs no lock."""
        _source_of(run).holding.put_back(run)

    def due_run(self, now: Now) -> Run | None:
        """The run whose first held message comes next; None if none is due, or at the end.

        Raises what ended a session.
        """
        fault = self.fault
        if fault is not None:
            raise fault
        if self._ended:
            return None
        self.collect()
        chosen, others_us = self._choose()
        if chosen is None:
            return None
        run = chosen.holding.due_run(chosen.taking.now())
        if run is not None:
            self._places.take()
            # One that waited long may be later than others: it is taken all the same.
            self._first_us = int(run.turn_us[run.next])
            self._others_us = max(others_us, self._first_us)
            self._own_us = chosen.holding.bound_us
            chosen.holding.bound_us = min(self._own_us, self._others_us)
        return run

    def _choose(self) -> tuple[Source | None, int]:
        """The session whose message comes next, and until when it does before those of others."""
        best: tuple[int, int] | None = None
        chosen: Source | None = None
        firsts: list[tuple[Source, int]] = []
        for source in self._sources:
            first = source.holding.first()
            if first is None:
                continue
            turn_us, run = first
            firsts.append((source, turn_us))
            now_us = source.clock.now_us()
            if turn_us > now_us:
                continue
            # A run that was made here anew came at no time.
            here_us = now_us - max(turn_us, min(run.came_us, now_us))
            rank = (0, -here_us) if here_us >= PATIENCE_US else (1, turn_us)
            if best is None or rank < best:
                best, chosen = rank, source
        others = [turn_us for source, turn_us in firsts if source is not chosen]
        return chosen, min(others) + _APART_US if others else FAR_US

    def lower_bounds(self, source: Source) -> None:
        """Something may have arrived by a session: what is taken from the others ends before it."""
        first = source.holding.first()
        if first is not None:
            until_us = max(first[0] + _APART_US, self._first_us)
            for other in self._sources:
                if other is not source and other.holding.bound_us > until_us:
                    other.holding.bound_us = until_us

    def watch(self, now: Now, everything: bool = False) -> float:
        """Seconds until the first held message is due; 0 or less: look now."""
        if self.over:
            return 0.0
        waits = [source.holding.watch(source.taking.now(), everything) for source in self._sources]
        return min(waits, default=float("inf"))

    def seconds_until_due(self, count: int, now: Now) -> float:
        """How long until `count` of those held are due; infinite if there are not so many."""
        self.collect()
        if not self._sources:
            return float("inf")
        first = self._sources[0].taking.now()
        # By the clock of the first of the brokers.
        held = [
            turns + (first.us - source.clock.now_us())
            for source in self._sources
            for turns in source.holding.held_turns()
        ]
        if sum(map(len, held)) < count:
            return float("inf")
        return first.until(int(np.partition(np.concatenate(held), count - 1)[count - 1]))

    def take_due(self, run: Run, count: int, now: Now) -> tuple[int, int]:
        """Up to `count` rows of the run that are due now, as [begin, end)."""
        source = _source_of(run)
        holding = source.holding
        if count >= _BATCH_ROWS and holding.bound_us >= 0:
            holding.bound_us = min(self._own_us, self._others_us + _BATCH_APART_US)
        return holding.take_due(run, count, source.taking.now())

    def take_each(
        self, run: Run, lock: AbstractContextManager[Any], clock: Clock, wake: Callable[[], None]
    ) -> Iterator[int]:
        """The rows of the run that are due, one by one, as long as none elsewhere is earlier."""
        source = _source_of(run)
        return source.holding.take_each(run, lock, source.clock, source.wake)

    def take_now(
        self, lock: AbstractContextManager[Any], clock: Clock, wake: Callable[[], None]
    ) -> tuple[Run, int] | None:
        """The message that comes next if it is due, as its run and row."""
        with lock:
            if self.over:
                return None
            self.collect()
            chosen, _ = self._choose()
            if chosen is not None:
                taken = chosen.holding.take_now(_SERIAL, chosen.clock, chosen.wake)
                if taken is not None:
                    self._places.take()
                    return taken
            # Each learns that a message was wanted; one may be due by now.
            for source in self._sources:
                taken = source.holding.take_now(_SERIAL, source.clock, source.wake)
                if taken is not None:
                    self._places.take()
                    return taken
        return None


def _source_of(run: Run) -> Source:
    source: Source = run.session  # type: ignore[assignment]
    return source
