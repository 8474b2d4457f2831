"""The demo's course: a broker, workers, traffic, a SIGKILL in the middle, and what came of it.

The story has one thread that knows the facts; all others tell it what they saw through a queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from examples.demo.facts import Facts, Show, Verdict
from examples.demo.traffic import (
    CHANGE_EVERY_S,
    FAR_DAYS,
    LEAD_US,
    TOPIC,
    Changes,
    Schedule,
    key_of,
    now_us,
)
from examples.demo.workers import WorkerProcess
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client, connect
from fasti.errors import FastiError
from fasti.model import DAY_US

WORKERS = 3
_PATIENCE_S = 60.0
# The share of the messages that is cancelled, and as many are moved.
_CHANGED_SHARE = 0.05


class Story:
    """One run, in a new directory."""

    lease = "5s"

    def __init__(
        self,
        directory: Path,
        near: int,
        far: int,
        seconds: float,
        show: Show,
        afterwards: Callable[[str], None] | None = None,
    ) -> None:
        self._directory, self._near, self._far = directory, near, far
        self._afterwards = afterwards
        self._span_us = int(seconds * 1e6)
        self._show = show
        self._told: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self.facts = Facts()

    def tell(self, fact: str, *values: Any) -> None:
        """From any thread."""
        self._told.put((fact, values))

    def run(self) -> Verdict:
        """The whole of it; `afterwards` is called with the address while the broker is still there."""
        begun = time.monotonic()
        self._happened("a broker is started")
        with BrokerProcess(self._directory) as broker:
            self._happened(f"it listens at {broker.address}")
            with connect(broker.address) as client:
                self._play(broker.address, client, partial(self._kill_in_the_middle, broker))
                verdict = self._end(client)
            if self._afterwards is not None:
                self._afterwards(broker.address)
            self._show("ending the broker", verdict.delivered, verdict.delivered)
        files = (path for path in self._directory.rglob("*") if path.is_file())
        verdict.size_bytes = sum(path.stat().st_size for path in files)
        verdict.seconds = round(time.monotonic() - begun, 3)
        return verdict

    def _play(self, address: str, client: Client, trouble: Callable[[], None]) -> None:
        """`trouble` is called when all messages are scheduled, and lasts until the last is due."""
        client.create_topic(TOPIC, lease=self.lease, lookahead="50ms")
        with ExitStack() as stack:
            self._show("starting workers", 0, 1)
            workers = stack.enter_context(self._workers(address))
            schedule = Schedule(client, self.tell)
            stack.callback(schedule.close)
            self._schedule(client, schedule)
            with self._traffic(client, schedule):
                trouble()
            self._wait_for_the_rest(workers)

    @contextmanager
    def _workers(self, address: str) -> Iterator[list[WorkerProcess]]:
        with ExitStack() as stack:
            made = []
            for number in range(1, WORKERS + 1):
                made.append(WorkerProcess(address, f"worker-{number}", self.tell))
                stack.callback(made[-1].leave)
            for worker in made:
                worker.wait_until_ready()
            self._happened(f"{WORKERS} worker processes wait for messages")
            yield made
            for worker in made:
                worker.finish()

    def _schedule(self, client: Client, schedule: Schedule) -> None:
        self._show("scheduling", 0, self._near + self._far)
        random = np.random.default_rng(1)
        ahead = random.beta(1.2, 3.0, self._far) * (FAR_DAYS - 1) * DAY_US
        schedule.fill(now_us() + DAY_US + ahead.astype(np.int64))
        from_us = now_us() + 2 * LEAD_US
        self.facts.window = (from_us, from_us + self._span_us)
        schedule.fill(np.sort(from_us + random.integers(0, self._span_us, self._near)))
        self._take()
        self._happened(
            f"{self._far:,} messages are scheduled for {FAR_DAYS} days, and {self._near:,} for the "
            f"next {self._span_us / 1e6:g} s"
        )
        # Those that are due last, so that there is time for it.
        count = int(self._near * _CHANGED_SHARE)
        keys = [key_of(number) for number in range(schedule.sent - count, schedule.sent)]
        if keys:
            Changes(client, self.tell).cancel_keys(keys)
            self._happened(f"{count:,} of them are cancelled by their keys")

    @contextmanager
    def _traffic(self, client: Client, schedule: Schedule) -> Iterator[None]:
        """Goes on while the broker is killed and started, as the traffic of users would."""
        rounds = self._span_us / 1e6 / CHANGE_EVERY_S
        shares = [count * _CHANGED_SHARE / rounds for count in (self._near, self._far)]
        changes = Changes(client, self.tell, *shares)
        stop = threading.Event()
        threads = [
            threading.Thread(target=each.go_on, args=(stop,), daemon=True)
            for each in (changes, schedule)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _kill_in_the_middle(self, broker: BrokerProcess) -> None:
        self._watch("delivering", until_us=sum(self.facts.window) // 2)
        self._kill_and_start(broker)
        self._watch("delivering after a new start", until_us=self.facts.window[1])

    def _kill_and_start(self, broker: BrokerProcess) -> None:
        self.facts.killed_at_us = now_us()
        broker.kill()
        self._happened("the broker is killed with SIGKILL; traffic and workers go on")
        self._show("the broker is away", len(self.facts.first_started), self._near)
        broker.start()
        self.facts.started_again_us = now_us()
        self._happened("it is started again on the same data and port")

    def _watch(self, what: str, until_us: int) -> None:
        """Takes what is told until a time has come."""
        while now_us() < until_us:
            self._show(what, len(self.facts.first_started), self._near)
            self._take(wait_s=0.05)

    def _wait_for_the_rest(self, workers: list[WorkerProcess]) -> None:
        end = time.monotonic() + _PATIENCE_S
        while self.facts.left_in_window() and time.monotonic() < end:
            self._show("waiting for the last ones", len(self.facts.first_started), self._near)
            self._take(wait_s=0.2)
            if not all(worker.alive for worker in workers):
                raise FastiError("a worker of the demo ended by itself")
        if left := len(self.facts.left_in_window()):
            self._happened(f"{left:,} messages that fell due have not arrived")
        else:
            self._happened("all that fell due has arrived")

    def _end(self, client: Client) -> Verdict:
        """What the broker still has, against what it should have."""
        self._show("counting what is left", len(self.facts.first_started), self._near)
        self._take()
        messages = client.messages(TOPIC)
        for batch in messages.scan():
            pairs = zip(batch["id"].to_pylist(), batch["due_us"].to_pylist(), strict=True)
            self.facts.remaining |= pairs
        verdict = self.facts.verdict()
        verdict.states = dict(messages.count())
        today_us = now_us() // DAY_US * DAY_US
        coming = messages.forecast("1d", start=today_us, end=today_us + (FAR_DAYS + 2) * DAY_US)
        starts, counts = coming["start_us"].to_pylist(), coming["count"].to_pylist()
        verdict.forecast = list(zip(starts, counts, strict=True))
        return verdict

    def _happened(self, what: str) -> None:
        self.facts.happened(now_us(), what)

    def _take(self, wait_s: float = 0.0) -> None:
        """All that was told; waits for the first if there is nothing."""
        with suppress(queue.Empty):
            fact, values = self._told.get(timeout=wait_s) if wait_s else self._told.get_nowait()
            while True:
                self._take_fact(fact, values)
                fact, values = self._told.get_nowait()

    def _take_fact(self, fact: str, values: tuple[Any, ...]) -> None:
        getattr(self.facts, fact)(*values)
