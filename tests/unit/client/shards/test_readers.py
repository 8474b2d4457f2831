"""Who is asked for stale reads: one that answered is asked again, one that hangs is not met each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fasti.client.shards import shard_transport
from fasti.client.shards.shard_transport import ShardTransport
from fasti.errors import TimedOut

HANGS, ANSWERS = ("hangs", 1), ("answers", 2)


class FakeProcesses:
    """Two, of which the map names the one first that hangs."""

    def __init__(self) -> None:
        self.map = SimpleNamespace(readers=lambda shard: [HANGS, ANSWERS])

    def of(self, shard: int) -> Any:
        return self.at(HANGS)

    def at(self, host: tuple[str, int]) -> Any:
        return SimpleNamespace(host=host, timeout_s=30.0, runtime=None, estimate=None)

    def look_around(self, likely: Any, until: float) -> None:
        """Nothing is new."""


def test_one_that_answered_is_asked_again_for_as_long_as_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    fake_time = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(shard_transport, "time", fake_time)
    monkeypatch.setattr(shard_transport, "ShardClock", lambda estimate: None)
    monkeypatch.setattr(shard_transport, "CallNumbers", lambda runtime: None)
    processes: Any = FakeProcesses()
    transport = ShardTransport(processes, 0)
    met: list[float] = []

    def attempt(process: Any, wait_s: float) -> str:
        if process.host == HANGS:
            met.append(clock[0])
            clock[0] += wait_s
            raise TimedOut("no answer")
        return "answer"

    for _ in range(60):
        assert transport._ask_readers(attempt, "count", clock[0] + 30) == "answer"
        clock[0] += 1.0
    # Each five seconds the others may be asked, and not with each read from then on.
    assert 1 <= len(met) <= 60 / shard_transport._READER_KEPT_S
