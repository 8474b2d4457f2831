"""What every `BlockStore` promises, checked on every kind of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fasti.errors import AlreadyExists, Corruption, Fenced, InvalidArgument, NotFound
from fasti.storage.blocks import BlockStore
from fasti.storage.files import LocalFiles
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.memory.blocks import MemoryBlocks
from fasti.testing.disk import SimulatedFiles
from tests.cluster.stream_rig import ShardStreams


@pytest.fixture(params=["local", "memory", "simulated", "streams"])
def blocks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    if request.param == "streams":
        with ShardStreams(request.getfixturevalue("nats")) as streams:
            yield streams.open_blocks(tmp_path)
    elif request.param == "local":
        yield FileBlocks(LocalFiles(tmp_path))
    else:
        yield MemoryBlocks() if request.param == "memory" else FileBlocks(SimulatedFiles())


def test_a_block_is_read_as_it_was_put(blocks: BlockStore) -> None:
    numbers = np.arange(4, dtype=np.int64)
    blocks.put("runs/1.meta", [b"abc", numbers, b""])
    assert bytes(blocks.get("runs/1.meta")) == b"abc" + numbers.tobytes()
    assert blocks.size("runs/1.meta") == 35
    blocks.sync()
    assert bytes(blocks.get("runs/1.meta", 1, 2)) == b"bc"
    assert bytes(blocks.get("runs/1.meta", 3)) == numbers.tobytes()
    assert bytes(blocks.get("runs/1.meta", 35)) == b""


def test_an_empty_block_is_a_block(blocks: BlockStore) -> None:
    blocks.put("empty", [])
    assert blocks.size("empty") == 0
    assert bytes(blocks.get("empty")) == b""
    assert blocks.list() == ["empty"]


def test_a_range_outside_is_corruption(blocks: BlockStore) -> None:
    blocks.put("a", [b"12345"])
    for offset, length in ((0, 6), (5, 1), (6, None), (-1, 2), (3, -1)):
        with pytest.raises(Corruption):
            blocks.get("a", offset, length)


def test_a_name_is_used_once(blocks: BlockStore) -> None:
    blocks.put("a", [b"1"])
    with pytest.raises(AlreadyExists):
        blocks.put("a", [b"2"])
    assert bytes(blocks.get("a")) == b"1"


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "../a", "a/../b", "a//b", ".a", "MANIFEST", "a.tmp", "a b"]
)
def test_bad_names_are_refused(blocks: BlockStore, name: str) -> None:
    with pytest.raises(InvalidArgument):
        blocks.put(name, [b"1"])
    assert blocks.list() == []


def test_list_and_delete(blocks: BlockStore) -> None:
    for name in ("runs/2", "runs/1", "runs/10", "state/1"):
        blocks.put(name, [name.encode()])
    blocks.switch_manifest(0, b"")
    assert blocks.list() == ["runs/1", "runs/10", "runs/2", "state/1"]
    assert blocks.list("runs/1") == ["runs/1", "runs/10"]
    assert blocks.list("nothing") == []
    view = blocks.get("runs/1")
    blocks.delete("runs/1")
    assert bytes(view) == b"runs/1"
    assert blocks.list("runs/") == ["runs/10", "runs/2"]
    for call in (blocks.delete, blocks.get, blocks.size):
        with pytest.raises(NotFound):
            call("runs/1")


def test_the_manifest_is_switched_by_who_knows_its_version(blocks: BlockStore) -> None:
    assert blocks.read_manifest() is None
    with pytest.raises(Fenced):
        blocks.switch_manifest(1, b"too early")
    assert blocks.switch_manifest(0, b"one") == 1
    assert blocks.switch_manifest(1, b"two") == 2
    for version in (0, 1, 3):
        with pytest.raises(Fenced) as caught:
            blocks.switch_manifest(version, b"stale")
        assert caught.value.details == {"expected": version, "found": 2}
    assert blocks.read_manifest() == (2, b"two")
