"""A disk that is full, or fails, at every moment: calls are answered, and work goes on afterwards."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from tests.faults.conftest import Tried
from tests.faults.shim import Calls, MachineFaults
from tests.integration.serve_rig import ask

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import StorageFull

# Segments and checkpoints come and go with every few sends.
ROLLING = {
    "segment_size": "64KiB",
    "checkpoint_size": "256KiB",
    "memory": "64MiB",
    "leases_max": 4096,
}
BATCH = [b"x" * 4000] * 10
PATIENCE_S = 20.0


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
