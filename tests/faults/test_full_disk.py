"""A disk that is full, or fails, at every moment: calls are answered, and work goes on afterwards."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import StorageFull
from tests.faults.conftest import Tried
from tests.faults.shim import Calls, MachineFaults
from tests.faults.sweep import PATIENCE_S, ROLLING, Sweep
from tests.integration.serve_rig import ask

BATCH = [b"x" * 4000] * 10


def send_for_ever(producer: fasti.Producer) -> None:
    while True:
        producer.send_batch(BATCH, delay="1h")


@pytest.mark.fault(
    "full disk",
    "no room for a segment while the change feed can't be given up either",
    "storage_full; goes on when there is room",
)
def test_the_thread_that_prepares_segments_outlives_a_full_disk(
    machine: MachineFaults, tmp_path: Path, tried: Tried
) -> None:
    with (
        BrokerProcess(
            tmp_path / "data", http="127.0.0.1:0", env=machine.environment, settings=ROLLING
        ) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        producer = client.producer("t", deadline=1)
        for _ in range(8):
            assert producer.send_batch(BATCH, delay="1h").all_ok
        client.checkpoint()
        # Now the journal is the feed's only, and giving it up takes a rename or a deletion.
        machine.fail(
            Calls.ALLOCATE | Calls.RENAME | Calls.UNLINK, errno.ENOSPC, ".preparing|.segment"
        )
        with pytest.raises(StorageFull):
            send_for_ever(producer)
        tried.times = machine.injected
        assert ask(broker, "/readyz").json()["details"]["reason"] == "storage_full"
        machine.heal()
        assert producer.send_batch(BATCH, delay="1h").all_ok
        until = time.monotonic() + PATIENCE_S
        while ask(broker, "/readyz").status != 200:
            assert time.monotonic() < until, ask(broker, "/readyz").body


@pytest.fixture
def sweep(machine: MachineFaults, tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path / "data", machine)
    yield made
    made.close()


EXPECTED = "each call answered; ready again, nothing lost"
# What fails, with which error, and how many calls of the sort one round makes at most.
SORTS = {
    "write": (Calls.WRITE, errno.EIO),
    "write-full": (Calls.WRITE, errno.ENOSPC),
    "sync": (Calls.SYNC, errno.EIO),
    "allocate": (Calls.ALLOCATE, errno.ENOSPC),
    "rename": (Calls.RENAME, errno.ENOSPC),
    "open": (Calls.OPEN, errno.EMFILE),
    "unlink": (Calls.UNLINK, errno.EIO),
    "map": (Calls.MAP, errno.ENOMEM),
}


@pytest.mark.fault("full disk", "the nth file call of a sort fails under traffic", EXPECTED)
def test_a_file_call_that_fails_now_and_then(sweep: Sweep, tried: Tried) -> None:
    for nth, (calls, error) in enumerate(SORTS.values()):
        sweep.round(calls, error, nth, times=1)
    tried.times = sweep.machine.injected


@pytest.mark.long
@pytest.mark.parametrize("sort", list(SORTS))
@pytest.mark.parametrize("times", [1, 3, -1])
@pytest.mark.fault("full disk", "the nth file call of a sort fails under traffic", EXPECTED)
def test_every_file_call_of_a_rotation_fails(
    sweep: Sweep, sort: str, times: int, tried: Tried
) -> None:
    calls, error = SORTS[sort]
    before = -1
    # A disk that stays ill ends the broker, round after round.
    for nth in range(0, 60, 1 if times == 1 else 6):
        sweep.round(calls, error, nth, times)
        if sweep.machine.injected == before:
            break
        before = sweep.machine.injected
    tried.times = sweep.machine.injected
    print(sort, times, sweep.rounds, sweep.ends, sweep.answers)
