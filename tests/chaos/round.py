"""One round of load: workers on topics of their own, which are drained and judged at its end.

A run has many rounds on one cluster, so that a broken promise is found soon and histories don't grow for ever.

| topic | kind | what is done | what is checked |
| --- | --- | --- | --- |
| t | timeline | sends with and without keys, at once and later, in batches; cancels, moves, updates | all of `verdict.py`, with leases that can't end |
| l | timeline | consumers that are paused and killed | two live leases |
| o | timeline | one consumer, which gives nothing back | order of sends |
| g | log | appends, an ordered group | order of sends and of deliveries, offsets |
| k | kv | increments by compare-and-set | counts, stale reads |
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import fasti
from fasti.errors import FastiError
from tests.chaos.trouble import Consumers
from tests.integration.trouble.load import TOPIC, check_counts
from tests.integration.trouble.rig import Crew, Worker, crew
from tests.integration.trouble.tallies import (
    check_counters,
    check_got_in_order,
    check_log,
    check_sent_in_order,
    count_displaced,
)
from tests.integration.trouble.verdict import Ledger

LEASE_S = 10
# When all faults are healed, so long may it take until nothing is left to do.
HEAL_S = 180.0
# Servers that are lost one after the other may hold a shard up for longer than calls wait by default.
PATIENCE_S = 120


class Mortals(Consumers):
    """Of topic `l`: of three, two may be disturbed. A new one comes in the place of one that was killed."""

    def __init__(self) -> None:
        self._crew: Crew | None = None
        self._alive: list[Worker] = []
        self._paused: list[Worker] = []
        self._options: dict[str, Any] = {}
        self._count = 0

    def begin(self, workers: Crew, **options: Any) -> None:
        self._crew, self._options, self._alive, self._count = workers, options, [], 0
        for _ in range(3):
            self._start()

    def end(self) -> None:
        """The round is over: nothing is disturbed any more."""
        self._crew = None

    def _start(self) -> None:
        assert self._crew is not None
        self._count += 1
        who = f"consumer-{self._count}"
        self._alive.append(self._crew.start("consume", who, **self._options))

    def pause(self, number: int) -> None:
        if self._crew is not None:
            self._paused.append(self._alive[number % 2])
            self._paused[-1].pause()

    def resume(self) -> None:
        while self._paused:
            self._paused.pop().resume()

    def replace(self, number: int) -> None:
        if self._crew is not None:
            worker = self._alive.pop(number % 2)
            self._crew.workers.remove(worker)
            worker.kill()
            self._start()


class Round:
    """Make it, `begin`, let it be for a while, and `finish` when all faults are healed."""

    def __init__(self, number: int, seed: int, address: str, mortals: Mortals) -> None:
        self._number, self._seed, self._address = number, seed, address
        self._mortals = mortals
        self._stack = ExitStack()
        self.crews: dict[str, Crew] = {}

    def begin(self, partitions: int, stderr: IO[bytes]) -> None:
        with fasti.connect(self._address, timeout="60s") as client:
            self._make_topics(client, partitions)
        for letter in "tlogk":
            self.crews[letter] = self._stack.enter_context(crew(self._address))
            self.crews[letter].stderr = stderr
        start = self._starter("t", pause_ms=60)
        start("produce", "producer-1")
        start("produce", "producer-2")
        start("change", "changer", delay_ms=3000)
        start("consume", "consumer-1", way="message")
        start("consume", "consumer-2", way="batch", prefetch=100)
        start("consume", "consumer-3", way="message", prefetch=4)
        start = self._starter("l", pause_ms=150)
        start("produce", "producer-1", manners=["singles"])
        self._mortals.begin(
            self.crews["l"], prefetch=8, hold_ms=10, seed=self._seed, topic=self.topic("l")
        )
        start = self._starter("o", pause_ms=150)
        start("produce", "producer-1", manners=["singles"], delay_ms_max=0)
        start("consume", "consumer-1", nacks=0)
        start = self._starter("g", pause_ms=150)
        start("produce", "producer-1", manners=["rows"])
        start("consume", "consumer-1", group="readers", nacks=0)
        start = self._starter("k", pause_ms=100)
        start("count", "counter-1")
        start("count", "counter-2")
        for workers in self.crews.values():
            workers.all_ready()

    def topic(self, letter: str) -> str:
        return f"{letter}{self._number}"

    def _make_topics(self, client: fasti.Client, partitions: int) -> None:
        settings: dict[str, Any] = {**TOPIC, "partitions": partitions}
        makers: dict[str, Callable[[], Any]] = {
            "t": lambda: client.create_topic(self.topic("t"), **settings),
            "o": lambda: client.create_topic(self.topic("o"), **settings),
            "l": lambda: client.create_topic(
                self.topic("l"), **{**settings, "lease": f"{LEASE_S}s"}
            ),
            "g": lambda: client.create_topic(
                self.topic("g"), kind="log", partitions=partitions, max_attempts=0, lease="1h"
            ),
            "k": lambda: client.create_topic(self.topic("k"), kind="kv", partitions=partitions),
        }
        for make in makers.values():
            insist(make)
        insist(lambda: client.groups(self.topic("g")).create("readers", ordered=True))

    def _starter(self, letter: str, **common: Any) -> Callable[..., Worker]:
        def start(module: str, who: str, **options: Any) -> Worker:
            given = {
                "topic": self.topic(letter),
                "seed": f"{self._seed}-{self._number}",
                "timeout": f"{PATIENCE_S}s",
            }
            return self.crews[letter].start(module, who, **given, **common, **options)

        return start

    def dead(self) -> list[str]:
        """Workers that ended by themselves: something happened to them that they did not expect."""
        return [
            f"{letter}/{worker.who}"
            for letter, workers in self.crews.items()
            for worker in list(workers.workers)
            if not worker.running
        ]

    def counts(self) -> Counter[str]:
        """How much was done so far."""
        found: Counter[str] = Counter()
        for workers in self.crews.values():
            found.update(fact["what"] for fact in workers.book.all())
        return found

    def sent_at(self) -> list[int]:
        """When sends to `t` were answered."""
        return [fact["at"] for fact in self.crews["t"].book.all("sent")]

    # The end

    def finish(self) -> Counter[str]:
        """No fault is left: everything must be done soon, and every promise kept. `AssertionError` if not."""
        self._mortals.end()
        found: Counter[str] = Counter()
        for letter in "tlogk":
            for worker in self._of(letter, consumers=False):
                worker.stop()
        with fasti.connect(self._address, timeout="60s") as client:
            for letter in "tlo":
                self._drain(letter, client)
            self._drain_log(client)
            for letter in "tlog":
                for worker in self._of(letter, consumers=True):
                    worker.stop()
            ledgers = {letter: Ledger(self.crews[letter].book) for letter in "tlog"}
            for letter in "tlo":
                self._check_timeline(letter, ledgers[letter], client)
            self._check_log(ledgers["g"], client)
            self._check_counters(client)
            for letter in "tlogk":
                name = self.topic(letter)
                insist(lambda name=name: client.delete_topic(name))
        for ledger in ledgers.values():
            found["sent"] += len(ledger.ok)
            found["delivered"] += sum(map(len, ledger.got.values()))
            found["acked"] += len(ledger.acked)
            found["cancelled"] += len(ledger.cancelled())
            found["displaced"] += count_displaced(ledger) if ledger is ledgers["o"] else 0
            found["unknown"] += len(ledger.maybe) + len(ledger.maybe_cancelled())
        counters = self.crews["k"].book
        found["incremented"] += len(counters.all("incremented"))
        found["unknown"] += len(counters.all("increment_unknown"))
        return found

    def _of(self, letter: str, consumers: bool) -> list[Worker]:
        return [
            worker
            for worker in self.crews[letter].workers
            if worker.who.startswith("consumer") == consumers
        ]

    def _drain(self, letter: str, client: fasti.Client) -> None:
        def left() -> int:
            counts = client.messages(self.topic(letter)).count()
            return counts["scheduled"] + counts["ready"] + counts["leased"]

        await_nothing(left, f"topic {self.topic(letter)}")

    def _drain_log(self, client: fasti.Client) -> None:
        groups = client.groups(self.topic("g"))
        await_nothing(lambda: groups.describe("readers").lag, f"log {self.topic('g')}")

    def _check_timeline(self, letter: str, ledger: Ledger, client: fasti.Client) -> None:
        try:
            if letter == "l":
                ledger.check(False, every_send_ok=False, lease_us=LEASE_S * 1_000_000)
            else:
                ledger.check(every_send_ok=False)
            # A consumer that was killed may have acked more than it could tell.
            asked = {m for m, words in ledger.returned.items() if any("ack" in w for w in words)}
            ledger.nothing_lost(asked if letter == "l" else set())
            if letter == "o":
                check_sent_in_order(ledger)
            counts = insist(client.messages(self.topic(letter)).count)
            check_counts(ledger, counts)
        except AssertionError as error:
            raise AssertionError(f"topic {self.topic(letter)}: {error}") from error

    def _check_log(self, ledger: Ledger, client: fasti.Client) -> None:
        rows = insist(lambda: self._read_log(client))
        try:
            ledger.check(every_send_ok=False)
            ledger.nothing_lost()
            check_sent_in_order(ledger)
            check_got_in_order(ledger)
            check_log(ledger, rows)
        except AssertionError as error:
            raise AssertionError(f"log {self.topic('g')}: {error}") from error

    def _read_log(self, client: fasti.Client) -> list[tuple[int, int, int, str]]:
        return [
            (row.partition, row.offset, row.id, row.payload.decode())
            for row in client.reader(self.topic("g"))
        ]

    def _check_counters(self, client: fasti.Client) -> None:
        entries = insist(lambda: list(client.kv(self.topic("k"))))
        values = {entry.key: int(entry.value) for entry in entries}
        check_counters(self.crews["k"].book, values)

    def save(self, directory: Path) -> None:
        """The histories, for whoever looks for what went wrong."""
        for letter, workers in self.crews.items():
            workers.book.save(directory / f"{self.topic(letter)}.jsonl")

    def close(self) -> None:
        self._mortals.end()
        self._stack.close()


def insist(call: Callable[[], Any], seconds: float = HEAL_S) -> Any:
    """The result of a call that may be made again; all faults are healed, so it must come."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except FastiError as error:
            # A change of the catalogue that was not answered may have happened.
            if error.code in ("already_exists", "not_found"):
                return None
            if not error.retryable or time.monotonic() > deadline:
                raise AssertionError(f"not after {seconds:.0f} s: {error.code}: {error}") from error
            time.sleep(0.2)


def await_nothing(left: Callable[[], int], what: str) -> None:
    """Until nothing is left to do."""
    deadline = time.monotonic() + HEAL_S
    while count := insist(left):
        assert time.monotonic() < deadline, (
            f"{what} has {count} left, {HEAL_S:.0f} s after all faults were healed"
        )
        time.sleep(0.2)
