"""Log blocks: what checkpoints write of logs, and what opening and inspecting make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fasti.core.commands import DropSnapshot
from fasti.core.log.commands import Truncate
from fasti.errors import Corruption, FastiError
from fasti.model import SECOND_US
from fasti.storage.files import LocalFiles
from fasti.storage.log_rows import locations, read_piece
from fasti.storage.manifest import Manifest
from fasti.storage.tools.inspect import inspect, stats
from tests.unit.core.log.rig import START_US, LogRig


def blocks_of(rig: LogRig) -> list[tuple[int, int]]:
    """(first offset, rows) of each block of partition 0."""
    logs = rig.shard.store.manifest.logs
    return [(block.first_offset, block.rows) for block in logs if block.partition == 0]


def test_a_checkpoint_moves_rows_into_blocks_and_nobody_sees_it() -> None:
    rig = LogRig(partitions=3)
    keys = [f"k{n}" for n in range(50)]
    for number in range(6):
        rig.produce([f"{number}-{key}".encode() for key in keys], keys)
        rig.step(1)
    before = [rig.read(number) for number in range(3)]
    rig.checkpoint()
    assert [rig.read(number) for number in range(3)] == before
    assert all(piece.location >= 1 << 62 for piece in rig.page(0, 0).pieces)
    rig.produce([b"later"], partition=1)
    rig.restart()
    after = [rig.read(number) for number in range(3)]
    assert after[1].pop()["payload"] == b"later"
    assert after == before


def test_rows_keep_the_time_of_their_append() -> None:
    rig = LogRig()
    for _ in range(5):
        rig.produce([b"a", b"b"])
        rig.step(1)
    times = [START_US + (row // 2) * SECOND_US for row in range(10)]
    for _ in range(2):
        assert [row["created_us"] for row in rig.read()] == times
        for row in range(10):
            assert rig.at(times[row]) == row - row % 2
            assert rig.at(times[row] + 1) == row - row % 2 + 2
        rig.checkpoint()
    assert rig.at(0) == 0
    rig.call(Truncate("events", 0, 3))
    assert rig.at(0) == 3
    assert rig.at(times[4]) == 4


def test_blocks_have_a_bound_on_bytes() -> None:
    rig = LogRig()
    large = [bytes([number]) * (700 << 10) for number in range(8)]
    rig.produce([b"small"] * 5)
    rig.produce([*large, b"x", b"y"])
    rig.produce([b"after"])
    expected = rig.payloads()
    rig.checkpoint()
    assert rig.payloads() == expected
    assert blocks_of(rig) == [(0, 10), (10, 6)]
    assert all(block.size_bytes < 5 << 20 for block in rig.shard.store.manifest.logs)


def test_small_blocks_are_written_again_with_what_came_since() -> None:
    rig = LogRig()
    for number in range(4):
        rig.produce([str(number).encode()] * 5000)
        rig.checkpoint()
    assert blocks_of(rig) == [(0, 20_000)]
    rig.produce([b"x"])
    rig.checkpoint()
    rig.produce([b"y"])
    rig.checkpoint()
    assert blocks_of(rig) == [(0, 20_000), (20_000, 2)]
    rig.checkpoint()
    assert blocks_of(rig) == [(0, 20_000), (20_000, 2)], "nothing new, nothing written"
    assert rig.payloads()[-3:] == [b"3", b"x", b"y"]
    names = {block.name for block in rig.shard.store.manifest.logs}
    stored = {name for name in rig.shard.store.blocks.list() if name.endswith(".payloads")}
    assert stored == names


def test_blocks_that_retention_emptied_go_with_the_next_checkpoint() -> None:
    rig = LogRig()
    rig.produce([b"a"] * 20_000)
    rig.checkpoint()
    rig.produce([b"b"] * 20_000)
    rig.checkpoint()
    assert len(rig.shard.store.manifest.logs) == 2
    rig.call(Truncate("events", 0, 19_999))
    rig.checkpoint()
    assert blocks_of(rig) == [(0, 20_000), (20_000, 20_000)], "a row of it is there"
    rig.call(Truncate("events", 0, 20_000))
    rig.checkpoint()
    assert blocks_of(rig) == [(20_000, 20_000)]
    rig.restart()
    assert rig.payloads() == [b"b"] * 20_000
    rig.call(Truncate("events", 0, 40_000))
    rig.checkpoint()
    assert rig.shard.store.manifest.logs == []
    rig.restart()
    assert rig.produce([b"c"]).ids.tolist() == [40_001]


def test_rows_that_are_trimmed_before_the_checkpoint_are_never_written() -> None:
    rig = LogRig()
    rig.produce([b"a", b"b", b"c"])
    rig.call(Truncate("events", 0, 2))
    rig.checkpoint()
    assert blocks_of(rig) == [(2, 1)]
    rig.call(Truncate("events", 0, 3))
    rig.produce([b"d"])
    rig.checkpoint()
    assert blocks_of(rig) == [(3, 1)]
    rig.restart()
    assert rig.payloads() == [b"d"]


def test_a_checkpoint_beside_appends_and_trims() -> None:
    rig = LogRig()
    rig.produce([b"0", b"1", b"2"])
    rig.produce([b"3", b"4"])
    store, engine = rig.shard.store, rig.shard.engine
    plan = rig.shard.begin_checkpoint(rig.now_us, 0)
    rig.produce([b"5"])
    rig.call(Truncate("events", 0, 2))
    written, finished = store.write_checkpoint(plan, lambda _: None, lambda _: None)
    rig.produce([b"6"])
    rig.call(Truncate("events", 0, 4))
    for each in [*written.inputs(), finished]:
        assert rig.call(each).error is None
    rig.call(DropSnapshot(plan.snapshot.number))
    store.clean_up(engine.snapshots)
    assert rig.payloads() == [b"4", b"5", b"6"]
    rig.restart()
    assert rig.payloads() == [b"4", b"5", b"6"]


def test_what_was_trimmed_is_counted_until_a_checkpoint_gives_it_back() -> None:
    rig = LogRig()
    rig.produce([bytes(1000)] * 100)
    memory = rig.shard.engine.memory
    rig.call(Truncate("events", 0, 50))
    assert 50_000 < memory.trimmed_bytes < 60_000
    rig.checkpoint()
    assert memory.trimmed_bytes == 0


def test_pieces_say_where_each_row_lies() -> None:
    rig = LogRig(partitions=2)
    keys = [f"k{n}" for n in range(20)]
    rig.produce([key.encode() for key in keys], keys)
    payloads = rig.shard.store.payloads
    for checkpointed in (False, True):
        for piece in rig.page(1, 0).pieces:
            assert (piece.rows is None) == checkpointed
            gathered = payloads.gather(locations(piece)).column("payload")
            assert read_piece(payloads, piece).column("payload").equals(gathered)
        rig.checkpoint()


def rewrite(rig: LogRig, change: Any) -> None:
    """The manifest, with its logs changed."""
    blocks = rig.shard.store.blocks
    found = blocks.read_manifest()
    assert found is not None
    manifest = Manifest.decode(found[1])
    manifest.logs = change(manifest.logs)
    blocks.switch_manifest(found[0], manifest.encode())


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_manifest_without_some_rows_is_refused(lost: int) -> None:
    rig = LogRig()
    for _ in range(3):
        rig.produce([b"x"] * 20_000)
        rig.checkpoint()
    rewrite(rig, lambda logs: [block for n, block in enumerate(logs) if n != lost])
    with pytest.raises(Corruption, match="log 'events', partition 0"):
        rig.restart()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    rig = LogRig(LocalFiles(tmp_path), partitions=2)
    for number in range(3):
        rig.produce([b"x"] * 20_000, partition=0)
        rig.produce([b"y"] * 10, partition=1)
        rig.checkpoint()
        rig.step(number)
    rig.produce([b"tail"], partition=1)
    rig.shard.close()
    return tmp_path


def payload_files(directory: Path) -> list[Path]:
    return sorted((directory / "blocks").glob("*.payloads"))


def test_stats_and_inspect_know_logs(directory: Path) -> None:
    report = inspect(LocalFiles(directory))
    assert report.findings == []
    held = stats(LocalFiles(directory), START_US)
    assert (held.log_blocks, held.log_rows) == (4, 60_030)
    assert held.topics[0].partitions == 2
    assert held.topics[0].states["ready"] == 60_031
    assert (held.blocks, held.block_rows) == (0, 0)


def test_a_damaged_log_block_is_found_and_never_read(directory: Path) -> None:
    file = payload_files(directory)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    kinds = [finding.kind for finding in inspect(LocalFiles(directory)).findings]
    assert kinds == ["damaged_block"]
    rig = LogRig(LocalFiles(directory), partitions=2)
    rows = rig.read(0)
    lost = [row for row in rows if row["payload"] is None]
    assert 0 < len(lost) < 1_000 < len(rows)
    assert [row["payload"] for row in rig.read(1)][-1] == b"tail"
    rig.shard.close()


def test_a_missing_log_block_is_found_and_the_shard_does_not_open(directory: Path) -> None:
    payload_files(directory)[0].unlink()
    kinds = [finding.kind for finding in inspect(LocalFiles(directory)).findings]
    assert kinds == ["missing_block"]
    with pytest.raises(FastiError, match="missing, though the manifest names it"):
        LogRig(LocalFiles(directory))


def test_blocks_with_a_hole_are_found(directory: Path) -> None:
    rig = LogRig(LocalFiles(directory), partitions=2)
    rewrite(rig, lambda logs: [block for block in logs if block.first_offset != 20_000])
    rig.shard.close()
    kinds = {finding.kind for finding in inspect(LocalFiles(directory)).findings}
    assert "damaged_log" in kinds


def test_many_small_appends() -> None:
    rig = LogRig(partitions=2)
    for number in range(3000):
        rig.produce([str(number).encode()], partition=number % 2)
    # A page has a bound on pieces: the next one goes on where it ended.
    assert len(rig.page(0, 0).pieces) == 1024
    expected = [str(number).encode() for number in range(0, 3000, 2)]
    assert rig.payloads(0) == expected
    rig.checkpoint()
    assert blocks_of(rig) == [(0, 1500)]
    assert rig.payloads(0) == expected
    wanted = np.array([0, 700, 1499], dtype=np.int64)
    logs = rig.shard.engine.state.by_name["events"].body.partitions[0]
    batch = rig.shard.store.payloads.gather(logs.locations_of(wanted))
    assert batch.column("payload").to_pylist() == [b"0", b"1400", b"2998"]
