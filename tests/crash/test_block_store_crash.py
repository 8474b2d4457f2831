"""Every crash point of blocks and their manifest.

After any of them the manifest is the last one whose switch returned, or the one being switched
to; every block that it names is there, whole; and no block is there in part.
"""

from __future__ import annotations

import json
import random

import pytest

from fasti.storage.files.blocks import FileBlocks
from fasti.testing.disk import Crashed, SimulatedFiles


def content(name: str) -> bytes:
    return name.encode() * 300


def live(files: SimulatedFiles, told: list[int]) -> None:
    """Generation g puts two blocks, names all but the oldest, then deletes that one."""
    blocks = FileBlocks(files)
    for generation in range(1, 7):
        for name in block_names(generation)[-2:]:
            blocks.put(name, [content(name)[:100], content(name)[100:]])
        names = block_names(generation)
        blocks.switch_manifest(generation - 1, json.dumps(names).encode())
        told.append(generation)
        if generation > 2:
            blocks.delete(f"runs/{generation - 2}-0")
            blocks.sync()


def block_names(generation: int) -> list[str]:
    """What the manifest of a generation names."""
    recent = range(max(1, generation - 1), generation + 1)
    return [f"runs/{number}-{part}" for number in recent for part in (0, 1)]


def operations() -> int:
    files = SimulatedFiles()
    live(files, [])
    return files.operations


@pytest.mark.parametrize("seed", range(5))
def test_every_crash_point(seed: int) -> None:
    for stop in range(operations()):
        files = SimulatedFiles(stop_before=stop)
        told = [0]
        with pytest.raises(Crashed):
            live(files, told)
        after = FileBlocks(files.crash(random.Random(f"{seed} {stop}")))
        version, data = after.read_manifest() or (0, b"[]")
        assert version in (told[-1], told[-1] + 1)
        named = json.loads(data)
        assert named == (block_names(version) if version else [])
        assert set(named) <= set(after.list())
        for name in after.list():
            assert bytes(after.get(name)) == content(name)
