"""Sealed objects: what was sealed comes back, and nothing else does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fasti.errors import Corruption, NewerFormat
from fasti.storage import seals
from fasti.storage.runs import Block, epoch_in, number_in
from fasti.storage.seals import open_seal, seal, seal_content, unseal


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers)


def test_a_batch_comes_back() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2, None]), "b": ["x", None, ""]})
    assert unseal(memoryview(joined(seal(batch))), "b") == batch


@pytest.mark.parametrize("content", [b"", b"x", b"content of some length"])
def test_no_flipped_bit_goes_unseen(content: bytes) -> None:
    data = bytearray(joined(seal_content([content])))
    assert open_seal(memoryview(data), "s") == content
    for offset in range(len(data)):
        for bit in range(8):
            data[offset] ^= 1 << bit
            with pytest.raises(Corruption) as caught:
                open_seal(memoryview(data), "s")
            assert caught.value.details["file"] == "s"
            data[offset] ^= 1 << bit


def test_what_is_cut_short_or_no_block_is_corruption() -> None:
    data = joined(seal_content([b"content"]))
    for end in range(len(data)):
        with pytest.raises(Corruption):
            open_seal(memoryview(data[:end]), "s")
    with pytest.raises(Corruption, match="not a block"):
        open_seal(memoryview(b"x" * 100), "s")


def test_a_newer_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(seals, "BLOCK_FORMAT_VERSION", 3)
        data = joined(seal_content([b"content"]))
    with pytest.raises(NewerFormat):
        open_seal(memoryview(data), "s")


def test_names_of_a_block() -> None:
    block = Block(17, 5, 3, 10, 100, (1, 0, 5), (2, 1, 9))
    assert block.names == ["00000005-000000000017.rows", "00000005-000000000017.payloads"]
    assert Block.from_dict(block.to_dict()) == block
    delta = Block(18, 6, 3, 10, 100, (1, 0, 5), (2, 1, 9), delta=True)
    assert delta.names == ["00000006-000000000018.delta"]
    assert Block.from_dict(delta.to_dict()) == delta
    assert {number_in(name) for name in [*block.names, *delta.names]} == {17, 18}
    assert {epoch_in(name) for name in [*block.names, *delta.names]} == {5, 6}
    assert epoch_in("no-block") == epoch_in("000000000017.rows") == 0
