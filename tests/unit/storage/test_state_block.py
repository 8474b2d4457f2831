"""The state block: what a shard holds beside its rows comes back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.core.capsule import capture
from fasti.errors import Corruption
from fasti.storage.state_block import decode_state, encode_state
from fasti.testing.disk import SimulatedFiles
from tests.crash.shard_workload import Driven, write_story


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers)


@pytest.mark.parametrize("seed", range(3))
def test_the_state_of_a_story_comes_back(seed: int) -> None:
    files = SimulatedFiles()
    write_story(seed, 50, files)
    was = capture(Driven(files).shard.engine.state)
    now = decode_state(memoryview(joined(encode_state(was))), "s")
    assert now.head == was.head
    assert now.columns.keys() == was.columns.keys()
    for name, made in was.columns.items():
        values = made() if callable(made) else made
        assert now.columns[name].dtype == values.dtype, name
        assert np.array_equal(now.columns[name], values), name


def test_damage_is_found() -> None:
    was = capture(Driven(SimulatedFiles()).shard.engine.state)
    data = bytearray(joined(encode_state(was)))
    data[len(data) // 2] ^= 1
    with pytest.raises(Corruption):
        decode_state(memoryview(data), "s")
