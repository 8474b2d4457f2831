"""What is particular to blocks in files."""

from __future__ import annotations

import pytest

from fasti.errors import Corruption, NewerFormat, NotFound, StorageFailed, StorageFull
from fasti.storage.files.blocks import FileBlocks, decode_manifest, encode_manifest
from fasti.storage.frames import body_checksum
from fasti.testing.disk import SimulatedFiles


def test_every_bit_of_a_manifest_counts() -> None:
    content = encode_manifest(3, b"some data")
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corruption):
            decode_manifest(bytes(damaged), "MANIFEST")
    for length in range(len(content)):
        with pytest.raises(Corruption):
            decode_manifest(content[:length], "MANIFEST")
    with pytest.raises(Corruption):
        decode_manifest(content + b"x", "MANIFEST")


def test_a_newer_manifest_is_refused() -> None:
    content = bytearray(encode_manifest(3, b"data"))
    content[8] = 2
    content[32:40] = body_checksum([content[:32], content[40:]]).to_bytes(8, "little")
    with pytest.raises(NewerFormat) as caught:
        decode_manifest(bytes(content), "MANIFEST")
    assert (caught.value.found, caught.value.supported) == (2, 1)


def test_a_damaged_manifest_is_not_taken_for_none() -> None:
    files = SimulatedFiles()
    blocks = FileBlocks(files)
    blocks.switch_manifest(0, b"data")
    files.flip_bit("blocks/MANIFEST", 41)
    for call in (blocks.read_manifest, lambda: blocks.switch_manifest(1, b"new")):
        with pytest.raises(Corruption) as caught:
            call()
        assert caught.value.file == "blocks/MANIFEST"


def test_a_put_that_fails_leaves_nothing() -> None:
    for kind in ("write", "sync", "rename"):
        files = SimulatedFiles()
        blocks = FileBlocks(files)
        files.fail(kind)
        with pytest.raises(StorageFailed):
            blocks.put("a", [b"1234"])
        assert files.list("") == []
        blocks.put("a", [b"5678"])
        assert bytes(blocks.get("a")) == b"5678"


def test_a_full_disk_leaves_nothing_and_the_old_manifest() -> None:
    files = SimulatedFiles()
    blocks = FileBlocks(files)
    blocks.switch_manifest(0, b"old")
    files.capacity_bytes = 100
    with pytest.raises(StorageFull):
        blocks.put("a", [bytes(200)])
    with pytest.raises(StorageFull):
        blocks.switch_manifest(1, bytes(200))
    assert blocks.list() == []
    assert blocks.read_manifest() == (1, b"old")
    files.capacity_bytes = None
    assert blocks.switch_manifest(1, bytes(200)) == 2


def test_what_an_unfinished_put_left_is_removed() -> None:
    files = SimulatedFiles()
    files.create("blocks/runs/1.tmp", 10)
    files.create("blocks/MANIFEST.tmp", 10)
    assert FileBlocks(files).list() == []
    assert files.list("") == []


def test_one_directory_sync_for_many_puts() -> None:
    files = SimulatedFiles()
    blocks = FileBlocks(files)
    for number in range(5):
        blocks.put(f"runs/{number}", [b"x"])
    before = files.operations
    blocks.sync()
    blocks.sync()
    assert files.operations == before + 1


def test_a_directory_sync_that_failed_is_owed() -> None:
    files = SimulatedFiles()
    blocks = FileBlocks(files)
    blocks.put("a", [b"x"])
    files.fail("sync_directory")
    with pytest.raises(StorageFailed):
        blocks.sync()
    before = files.operations
    blocks.sync()
    assert files.operations == before + 1


def test_more_blocks_than_maps_are_kept() -> None:
    blocks = FileBlocks(SimulatedFiles())
    for number in range(300):
        blocks.put(f"b{number}", [b"%d" % number])
    views = {number: blocks.get(f"b{number}") for number in range(300)}
    assert all(bytes(view) == b"%d" % number for number, view in views.items())
    blocks.delete("b0")
    with pytest.raises(NotFound):
        blocks.get("b0")
