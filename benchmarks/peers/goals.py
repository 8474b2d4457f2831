"""What the figures must show, each with what was measured: reached, not reached, not measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.results import Results

_DURABLE = [name for name, peer in PEERS.items() if peer.durable and name != FASTI]


@dataclass(frozen=True)
class Goal:
    """One line. `figure` is ours and `bound` what it is held against; None: not measured."""

    text: str
    figure: float | None
    bound: float | None
    unit: str
    at_most: bool

    @property
    def reached(self) -> bool | None:
        """None if it can't be told."""
        if self.figure is None or self.bound is None:
            return None
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound


def goals(results: Results) -> list[Goal]:
    """All of them, in the order in which they were asked for."""
    return [*_latencies(results), *_rates(results), *_lateness(results), *_costs(results)]


def _latencies(results: Results) -> Iterator[Goal]:
    ours = _Ours(results)
    nats = _median(results, "nats-always", "send", "p50_ms")
    yield Goal(
        "send until acknowledged, p50: at most that of NATS with sync always",
        ours("send", "p50_ms"),
        nats,
        "ms",
        True,
    )
    yield Goal("send until acknowledged, p99", ours("send", "p99_ms"), 1.5, "ms", True)
    for rate in (50, 500, 5_000):
        for figure, word, bound in (
            ("p50_ms", "p50", 1.2),
            ("p99_ms", "p99", 4.0),
            ("p999_ms", "p99.9", 10.0),
        ):
            text = f"sent and due now, {rate:,} a second, {word}"
            yield Goal(text, ours(f"due_now_{rate}", figure), bound, "ms", True)


def _rates(results: Results) -> Iterator[Goal]:
    ours = _Ours(results)
    for word in ("cancel", "move"):
        figure = f"{word}_per_s"
        bound = _median(results, "postgresql", "change_one", figure)
        text = f"{word} one by one: at least as many as PostgreSQL"
        yield Goal(text, ours("change_one", figure), bound, "/s", False)
    for word in ("cancel", "move"):
        figure = f"{word}_per_s"
        bound = _times(2, _median(results, "redis-always", "change_many", figure))
        text = f"{word} by 1,000: at least twice as many as Redis (always)"
        yield Goal(text, ours("change_many", figure), bound, "/s", False)
    for scenario, words in (
        ("consume_loop", "consumer loop with default settings"),
        ("schedule", "schedule by batches"),
        ("lease_random", "lease + ack by batches, random due order"),
        ("both", "both at once"),
    ):
        bound = _times(10, best_durable(results, scenario))
        text = f"{words}: at least 10 times the best durable peer"
        yield Goal(text, ours(scenario, "per_s"), bound, "/s", False)
    yield Goal(
        "lease + ack in random order: at least 0.7 of that in arrival order",
        ours("lease_random", "per_s"),
        _times(0.7, ours("lease_arrival", "per_s")),
        "/s",
        False,
    )
    yield Goal("20,000 at one instant, until the last", ours("instant", "max_ms"), 120, "ms", True)


def _lateness(results: Results) -> Iterator[Goal]:
    ours = _Ours(results)
    late = ours("steady_10000_1000000", "p99_ms")
    yield Goal("lateness p99 at 10,000/s with 1 M pending", late, 2.0, "ms", True)
    beside = ours("beside_bulk", "p99_ms")
    yield Goal("lateness p99 at 10,000/s beside full bulk produce", beside, 8.0, "ms", True)


def _costs(results: Results) -> Iterator[Goal]:
    ours = _Ours(results)
    pending, topics = ours("pending_cost", "ratio"), ours("topics_cost", "ratio")
    yield Goal("cost with 10 M pending against 10 k", pending, 1.15, "times", True)
    yield Goal("cost with 2,000 topics against one", topics, 1.3, "times", True)


def best_durable(results: Results, scenario: str, figure: str = "per_s") -> float | None:
    """The best median among the peers whose acknowledgements are durable."""
    found = [_median(results, peer, scenario, figure) for peer in _DURABLE]
    return max((value for value in found if value is not None), default=None)


class _Ours:
    def __init__(self, results: Results) -> None:
        self._results = results

    def __call__(self, scenario: str, figure: str) -> float | None:
        return _median(self._results, FASTI, scenario, figure)


def _median(results: Results, peer: str, scenario: str, figure: str) -> float | None:
    found = results.value(peer, scenario, figure)
    return None if found is None else found.median


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value
