"""A whole shard in virtual time without a thread: sequencer, committer, housekeeper, scrubber, watchdog.

Messages are produced and leased while checkpoints are written, the disk fails and the shard recovers, an
hour passes and everything is scrubbed; then it is closed and opened again. All of it happens in the test's thread,
in an order that the seed decides: the same seed gives the same run, to the microsecond.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fasti.broker import committer
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import OutcomeUnknown
from fasti.model import TopicSettings
from fasti.runtime import ENDED
from fasti.storage.file_storage import FileStorage
from fasti.storage.memory_storage import MemoryStorage
from tests.integration.shard_rig import SharedFiles, int64s, shown
from tests.simulation.runtime import Deadlock, SimulatedRuntime

# Checkpoints come often and take their time, so that all else goes on meanwhile.
SETTINGS = ShardSettings(
    segment_bytes=1 << 16,
    memory_bytes=64 << 20,
    leases_max=4096,
    checkpoint_bytes=1 << 14,
    checkpoint_bytes_per_s=1 << 19,
)
MESSAGES = 60
HOUR_S = 3_600.0


class Simulation:
    """A shard, and what happened to it and when."""

    def __init__(self, runtime: SimulatedRuntime, files: SharedFiles) -> None:
        self.runtime, self.files = runtime, files
        self.shard = Shard(FileStorage(files), SETTINGS, self.runtime)
        self.trace: list[tuple[int, str]] = []
        self.sent = 0
        self.produced: dict[int, bytes] = {}

    def note(self, what: str) -> None:
        self.trace.append((self.runtime.clock.tick(), what))

    def produce(self, payload: bytes) -> None:
        """Without waiting for the answer; one that is not known is asked for again."""

        def answered(done: Any) -> None:
            error = done.exception()
            if error is not None:
                assert isinstance(error, OutcomeUnknown)
                self.note(f"unknown {payload[:4]!r}")
                # Nothing of it was synced: the fault was injected so.
                self.produce(payload)
            else:
                number = int(done.result()[0].ids[0])
                self.note(f"produced {number}")
                self.produced[number] = payload

        command = co.Produce("t", Rows.of([payload]), co.When())
        self.shard.submit([command]).add_done_callback(answered)

    def produce_all(self) -> None:
        """By a client that takes turns with the shard's services."""
        self.shard.call(co.CreateTopic("t", TopicSettings()))
        changed = self.runtime.condition()
        self.runtime.thread("client", lambda: None, self._produce_next, changed).start()
        assert self.runtime.run_until(lambda: len(self.produced) == MESSAGES, 60.0)
        self.files.faulty = ""

    def _produce_next(self) -> float:
        if self.sent == MESSAGES // 2:
            self.files.faulty = ".segment"
            self.files.fail("sync", 1)
        self.produce(b"%04d" % self.sent + b"x" * 996)
        self.sent += 1
        return self.runtime.random() * 0.01 if self.sent < MESSAGES else ENDED

    def consume_some(self) -> None:
        session = self.shard.open_session()
        session.lease("t", "consumer", 10)
        delivery = session.receive(timeout=60.0)
        assert delivery is not None
        ids = delivery.leased.ids
        self.note(f"received {ids.tolist()}")
        tokens = int64s(*[delivery.leased.token] * len(ids))
        assert self.shard.call(co.Ack("t", ids, tokens)).all_ok
        for number in ids.tolist():
            del self.produced[number]
        session.close()

    def watch_checkpoints(self) -> None:
        """Notes each; from the housekeeper's own step."""
        checkpoint = self.shard.housekeeper._checkpoint

        def noted() -> None:
            self.note("checkpoint")
            checkpoint()
            self.note("checkpoint is complete")

        self.shard.housekeeper._checkpoint = noted  # type: ignore[method-assign]


def simulate(seed: int) -> list[tuple[int, str]]:
    files, runtime = SharedFiles(), SimulatedRuntime(seed)
    first = Simulation(runtime, files)
    first.watch_checkpoints()
    first.produce_all()
    first.consume_some()
    assert first.shard.recoveries == 1
    assert first.shard.housekeeper.checkpoints > 0
    runtime.sleep(HOUR_S)
    assert first.shard.scrubber.last is not None
    assert first.shard.scrubber.last.findings == []
    assert first.shard.threads.troubles() == []
    first.shard.close()
    second = Simulation(runtime, files)
    assert shown(second.shard) == first.produced
    second.shard.close(checkpoint=False)
    return first.trace


def test_a_seed_gives_the_same_run_twice_and_without_a_thread() -> None:
    threads = threading.active_count()
    trace = simulate(1)
    assert threading.active_count() == threads
    assert trace == simulate(1)
    events = [what for _, what in trace]
    assert any(what.startswith("unknown") for what in events)
    # Another order of the same, in which as much is promised.
    assert simulate(2) != trace


def test_messages_go_on_while_a_checkpoint_is_written() -> None:
    trace = simulate(1)
    events = [what for _, what in trace]
    begin = events.index("checkpoint")
    end = events.index("checkpoint is complete")
    assert any(what.startswith("produced") for what in events[begin:end])


def test_no_step_is_decided_while_the_disk_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "_STEPS_WAITING_MAX", 2)
    runtime = SimulatedRuntime()
    shard = Shard(MemoryStorage(), SETTINGS, runtime)
    for number in range(2):
        shard.submit([co.CreateTopic(f"topic-{number}", TopicSettings())])
        assert shard.sequencer._driver.turn() == 0.0
    last = shard.submit([co.CreateTopic("topic-2", TopicSettings())])
    # Its turn comes when the committer has caught up.
    assert shard.sequencer._driver.turn() is None
    assert last.result(60.0)[0].error is None
    shard.close()


def test_waiting_for_what_never_comes_is_a_deadlock() -> None:
    runtime = SimulatedRuntime()
    with pytest.raises(Deadlock):
        runtime.future().result()
