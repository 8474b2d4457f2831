"""Logs on the threaded shard: readers beside producers and checkpoints, and space given back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.log.commands import DescribeLog, ReadLog, Truncate
from fasti.errors import Gone, NotFound, StorageFull
from fasti.model import HOUR_US, TopicSettings
from fasti.storage.log_rows import read_piece
from tests.integration.shard_rig import FakeClock, SharedFiles, serving

SETTINGS = ShardSettings(
    segment_bytes=1 << 16,
    memory_bytes=64 << 20,
    leases_max=4096,
    checkpoint_bytes=1 << 17,
    checkpoint_bytes_per_s=1 << 30,
)


def make_log(shard: Shard, **settings: Any) -> None:
    reply = shard.call(co.CreateTopic("events", TopicSettings(kind="log", **settings)))
    assert reply.error is None, reply.error


def numbered(first: int, count: int) -> Rows:
    """Payloads that say which row they are."""
    return Rows.of(pa.array([b"%d" % number for number in range(first, first + count)]))


def read_some(shard: Shard, offset: int) -> list[bytes]:
    """The next rows, wherever a checkpoint has put them meanwhile."""
    while True:
        page = shard.call(ReadLog("events", 0, offset, 500))
        try:
            batches = [read_piece(shard.store.payloads, piece) for piece in page.pieces]
        except (Gone, NotFound):
            continue
        return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


def test_a_reader_sees_every_row_once_beside_producers_and_checkpoints() -> None:
    batches, count = 120, 40
    total = batches * count
    with serving(SharedFiles(), SETTINGS, clock=FakeClock()) as shard:
        make_log(shard)
        found: list[bytes] = []
        stop = threading.Event()

        def follow() -> None:
            while len(found) < total and not stop.is_set():
                found.extend(read_some(shard, len(found)))

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            for batch in range(batches):
                reply = shard.call(co.Produce("events", numbered(batch * count, count)))
                assert reply.ids[0] == batch * count + 1
                if batch % 20 == 19:
                    shard.checkpoint()
            reader.join(50)
        finally:
            stop.set()
            reader.join(60)
        assert found == [b"%d" % number for number in range(total)]
        assert shard.store.manifest.logs


def test_retention_gives_space_back_by_itself() -> None:
    clock = FakeClock()
    files = SharedFiles()
    with serving(files, SETTINGS, clock=clock) as shard:
        make_log(shard, segment_age_us=HOUR_US)
        for _ in range(6):
            shard.call(co.Produce("events", Rows.of([bytes(1000)] * 50)))
        shard.checkpoint()
        blocks = {block.name for block in shard.store.manifest.logs}
        assert blocks <= set(shard.store.blocks.list())
        clock.advance(shard, HOUR_US)
        # A checkpoint begins without anybody asking: there is no traffic that could bring it.
        while blocks & set(shard.store.blocks.list()):
            described = shard.call(DescribeLog("events")).value[0]
            assert (described["rows"], described["end"]) == (0, 300)
        assert not shard.store.manifest.logs
    with serving(files, SETTINGS, clock=clock) as shard:
        assert shard.call(co.Produce("events", numbered(0, 1))).ids.tolist() == [301]


def test_a_read_that_retention_overtook_answers_gone() -> None:
    with serving(SharedFiles(), SETTINGS, clock=FakeClock()) as shard:
        make_log(shard)
        shard.call(co.Produce("events", numbered(0, 100)))
        shard.call(Truncate("events", 0, 60))
        page = shard.call(ReadLog("events", 0, 10))
        assert isinstance(page.error, Gone)
        assert page.error.details == {"partition": 0, "earliest": 60, "lost": 50}


def test_truncation_makes_room_on_a_full_disk() -> None:
    files = SharedFiles(capacity_bytes=3 << 20)
    with serving(files, SETTINGS, clock=FakeClock()) as shard:
        make_log(shard)

        def produce() -> bool:
            """Whether there was room."""
            with suppress(StorageFull):
                return shard.call(co.Produce("events", Rows.of([bytes(1000)] * 20))).all_ok
            return False

        while produce():
            pass
        end = shard.call(DescribeLog("events")).value[0]["end"]
        assert end > 500
        # What is left over depends on when checkpoints came: enough for a block of state.
        files.capacity_bytes = (3 << 20) + 8192
        assert shard.call(Truncate("events", 0, end)).error is None
        shard.checkpoint()
        while not produce():
            pass
        assert shard.call(DescribeLog("events")).value[0]["rows"] == 20
        assert shard.recoveries == 0


@pytest.mark.parametrize("abort", [False, True])
def test_a_transaction_over_a_timeline_and_a_log(abort: bool) -> None:
    files = SharedFiles()
    with serving(files, SETTINGS, clock=FakeClock()) as shard:
        make_log(shard)
        shard.call(co.CreateTopic("mail"))
        parts: list[Any] = [
            co.Produce("mail", Rows.of([b"m"])),
            co.Produce("events", numbered(0, 10)),
        ]
        if abort:
            parts.append(co.Ack("mail", np.array([1 << 40]), np.array([1])))
        assert shard.call(co.Transaction(parts)).committed == (not abort)
    with serving(files, SETTINGS, clock=FakeClock()) as shard:
        assert shard.call(DescribeLog("events")).value[0]["end"] == (0 if abort else 10)
        assert shard.call(co.Count("mail")).states["ready"] == (0 if abort else 1)
