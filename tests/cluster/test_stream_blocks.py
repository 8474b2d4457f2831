"""Blocks on a stream: parts, the local cache, lost answers, and a pointer that has moved on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fasti.cluster.block_cache import BlockCache
from fasti.cluster.nats import NatsConnection, Refused
from fasti.cluster.patience import Timeouts
from fasti.cluster.pointer import Place
from fasti.cluster.stream_blocks import StreamBlocks
from fasti.errors import AlreadyExists, Fenced, NoQuorum, NotFound, TimedOut
from tests.cluster.stream_rig import PATIENT, ShardStreams


@pytest.fixture
def streams(nats: NatsConnection) -> Iterator[ShardStreams]:
    with ShardStreams(nats) as found:
        yield found


def test_a_large_block_is_read_whole_and_in_ranges(streams: ShardStreams, tmp_path: Path) -> None:
    data = os.urandom(3_500_000)
    blocks = streams.open_blocks(tmp_path)
    blocks.put("7-1.a=b/c.rows", [data[:10], data[10:]])
    for reader in (blocks, streams.open_blocks()):
        assert bytes(reader.get("7-1.a=b/c.rows")) == data
        assert reader.size("7-1.a=b/c.rows") == len(data)
        for offset, length in ((0, 5), (1_047_990, 30), (900_000, 2_500_000), (3_499_999, 1)):
            got = reader.get("7-1.a=b/c.rows", offset, length)
            assert bytes(got) == data[offset : offset + length]
        assert reader.list() == ["7-1.a=b/c.rows"]
    blocks.delete("7-1.a=b/c.rows")
    state = streams.connection.stream_state(streams.names.blocks_stream)
    assert state is not None
    assert state.size_bytes == 0


def test_a_damaged_file_of_the_cache_is_read_again(streams: ShardStreams, tmp_path: Path) -> None:
    blocks = streams.open_blocks(tmp_path)
    blocks.put("a", [b"0123456789"])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damage in (whole[:-1] + b"?", whole[:70], b"", b"?" + whole[1:]):
        file.write_bytes(damage)
        assert bytes(blocks.get("a")) == b"0123456789"
        assert file.read_bytes() == whole


def test_the_cache_keeps_to_its_bytes_and_is_taken_over(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1000)
    for number in range(10):
        cache.put("block", f"b{number}", 0, bytes(300))
    assert cache.bytes == sum(path.stat().st_size for path in tmp_path.iterdir()) == 900
    (tmp_path / "left over.new").write_bytes(b"x")
    assert BlockCache(tmp_path, 700).bytes == 600
    assert len(list(tmp_path.iterdir())) == 2


def test_a_part_without_its_block_is_not_listed_and_swept(streams: ShardStreams) -> None:
    blocks = streams.open_blocks()
    blocks.put("1-1.rows", [os.urandom(2_500_000)])
    blocks.put("9-1.rows", [os.urandom(2_500_000)])
    for name in ("1-1.rows", "9-1.rows"):
        subject = streams.names.part_subject("block", name, 0)
        streams.connection.purge(streams.names.blocks_stream, subject=subject)
    assert blocks.list() == []
    with pytest.raises(NotFound):
        blocks.get("1-1.rows")
    blocks.sweep(epoch=9)
    left = streams.connection.subjects(streams.names.blocks_stream, ">")
    # What is not of an older epoch may be on its way.
    assert sorted(left) == [streams.names.part_subject("block", "9-1.rows", n) for n in (1, 2)]


class LossyConnection:
    """Stores what is published, and tells otherwise once for each error."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self.errors: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def publish(self, *arguments: Any, **options: Any) -> int:
        sequence = self._connection.publish(*arguments, **options)
        if self.errors:
            raise self.errors.pop()
        return sequence


@pytest.mark.parametrize("error", [Refused("wrong last sequence", 10071), TimedOut("late")])
def test_what_was_stored_without_an_answer_is_found(
    streams: ShardStreams, error: Exception
) -> None:
    lossy: Any = LossyConnection(streams.connection)
    streams.connection = lossy
    blocks = streams.open_blocks()
    lossy.errors = [error]
    blocks.put("a", [b"1"])
    assert bytes(blocks.get("a")) == b"1"
    with pytest.raises(AlreadyExists):
        blocks.put("a", [b"2"])
    # The manifest's block, then the pointer.
    lossy.errors = [error, error]
    assert blocks.switch_manifest(0, b"one") == 1
    assert blocks.switch_manifest(1, b"two") == 2
    assert streams.open_blocks().read_manifest() == (2, b"two")


def test_an_older_epoch_switches_nothing(streams: ShardStreams) -> None:
    blocks: StreamBlocks = streams.open_blocks()
    assert blocks.switch_manifest(0, b"one") == 1
    other = streams.new_pointer()
    other.write(replace(other.read(), epoch=2, broker="other"), other.record.revision)
    with pytest.raises(Fenced) as caught:
        blocks.switch_manifest(1, b"two")
    assert caught.value.details == {"epoch": 2}
    assert blocks.read_manifest() == (1, b"one")


def test_a_switch_whose_outcome_is_unknown_is_settled_before_the_manifest_is_read(
    streams: ShardStreams,
) -> None:
    lossy: Any = LossyConnection(streams.connection)
    streams.connection = lossy
    streams.timeouts = Timeouts(answer_s=0.3, call_s=0.0)
    blocks = streams.open_blocks()
    assert not streams.pointer.is_changing
    with pytest.raises(NoQuorum):
        streams.pointer.switch("1-1.x", 1, 0, Place())
    assert streams.pointer.is_changing
    # The change may still arrive, so that nobody may be told that it did not happen.
    with pytest.raises(NoQuorum):
        blocks.read_manifest()
    streams.timeouts = PATIENT
    streams.pointer._timeouts = PATIENT
    streams.pointer.settle()
    assert streams.new_pointer().read().manifest == "1-1.x"
