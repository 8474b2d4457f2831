"""Running an app's handlers in virtual time until they have nothing to do.

The app runs as ever, in its threads, tasks or processes. Between two looks at the broker everything
that handlers sent is flushed, so that what they put for themselves is seen as work. With `until`, time
goes on from one moment at which something is due to the next, so that handlers see each at its time.

What ran is read from the change feed afterwards: it tells of processes too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from fasti.client.durations import Duration, as_datetime, aware_us, duration_us
from fasti.errors import InvalidArgument, TimedOut

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.testing.virtual import VirtualBroker

End = Literal["acked", "nacked", "exhausted", "rejected", "released"]
_ENDS = ("acked", "nacked", "exhausted", "rejected", "released")


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a handler, and what became of its message.

    `acked`: it ended well. `nacked`: it failed, and comes again; `exhausted`: it failed for the last
    time, the message is dead. `rejected`: dead at once. `released`: given back for later.
    """

    topic: str
    id: int
    key: str | None
    end: End
    reason: str
    at: datetime


class IdleRun:
    """One call of `VirtualBroker.run_until_idle`."""

    def __init__(self, broker: VirtualBroker, app: Any, *, runs_max: int, timeout: float) -> None:
        if runs_max < 1:
            raise InvalidArgument(f"runs_max must be at least 1, not {runs_max}", field="runs_max")
        self._broker, self._app = broker, app
        self._topics = {handler.topic for handler in app.handlers}
        self._runs_max, self._timeout = runs_max, timeout
        self._client: Client = broker.client()
        self._steps = 0

    def run(self, until: Duration | datetime | None) -> list[Run]:
        """Raises `timed_out` if it doesn't come to an end."""
        broker = self._broker
        until_us = None if until is None else _moment_us(until, broker.clock.now_us())
        began = self._client.feed().last
        self._ends_before = broker.watch.ends
        started = not self._app.running
        if started:
            self._app.start()
        try:
            self._work_off()
            if until_us is not None:
                self._go_on(until_us)
        finally:
            if started:
                self._app.stop()
        self._client.checkpoint()
        return self._ran(began.frames)

    def _go_on(self, until_us: int) -> None:
        broker = self._broker
        while (at_us := self._next_us(until_us)) is not None:
            self._steps += 1
            broker.advance(max(at_us - broker.clock.now_us(), 0) / 1_000_000)
            self._work_off()
        broker.advance((until_us - broker.clock.now_us()) / 1_000_000)
        self._work_off()

    def _work_off(self) -> None:
        broker = self._broker
        while True:
            if not broker.watch.wait_for(self._is_idle, self._timeout):
                raise TimedOut(
                    f"still open after {self._timeout} s: {broker.open_work(self._topics)}; "
                    "does a handler hang?"
                )
            # Nothing is leased, so no handler runs. What they sent may be on its way, and may be
            # handled before we look again: it is over when nothing at all has happened meanwhile.
            before = broker.watch.changes
            if self._is_idle():
                broker.flush()
                if broker.watch.changes == before:
                    return

    def _is_idle(self) -> bool:
        left = self._broker.open_work(self._topics)
        runs = self._broker.watch.ends - self._ends_before
        # Moments don't count here: of too many of those `_next_us` tells, when this one is worked off.
        if left and runs > self._runs_max:
            raise TimedOut(
                f"no end after {runs} messages (runs_max={self._runs_max}), still open: {left}; does "
                "a handler put a message for itself, or give one back, without a delay?"
            )
        return not left

    def _next_us(self, until_us: int) -> int | None:
        """When something of the app is due next, or a schedule happens; None if not by then."""
        if self._broker.watch.ends - self._ends_before + self._steps > self._runs_max:
            raise TimedOut(
                f"no end after {self._runs_max} messages and moments (runs_max), at {self._broker.now}: "
                "give a nearer `until`, or a larger `runs_max`"
            )
        due_us = self._broker.next_due_us(self._topics)
        return due_us if due_us is not None and due_us <= until_us else None

    def _ran(self, after: dict[str, int]) -> list[Run]:
        keys: dict[tuple[str, int], str | None] = {}
        runs: list[Run] = []
        for table in self._client.changes():
            for row in table.to_pylist():
                place = (row["topic"], row["id"])
                if row["op"] == "produced" and row["key"] is not None:
                    keys[place] = row["key"]
                elif self._is_run(row, after):
                    number = row["offset"] if row["id"] is None else row["id"]
                    at = as_datetime(row["started_us"])
                    reason = row["reason"] or ""
                    runs.append(Run(row["topic"], number, keys.get(place), row["op"], reason, at))
        # Each shard's are in order already.
        return sorted(runs, key=lambda run: run.at) if len(after) > 1 else runs

    def _is_run(self, row: dict[str, Any], after: dict[str, int]) -> bool:
        # What was given back without having been begun has no start.
        started = row["op"] in _ENDS and bool(row["started_us"])
        return started and row["topic"] in self._topics and row["position"] > _behind(row, after)


def _behind(row: dict[str, Any], after: dict[str, int]) -> int:
    """Where the run began, in the feed that the row is of."""
    return after[row["shard"]] if len(after) > 1 else next(iter(after.values()))


def _moment_us(until: Duration | datetime, now_us: int) -> int:
    if not isinstance(until, datetime):
        return now_us + duration_us(until, "until")
    moment_us = aware_us(until, "until")
    if moment_us < now_us:
        raise InvalidArgument(f"{until} is past: time doesn't go back", field="until")
    return moment_us
