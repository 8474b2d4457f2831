"""A machine whose clock and disk misbehave, for broker processes that run unchanged.

`MachineFaults` sets the clock of the processes started under it, or makes their file calls fail, while they run.
It needs a C compiler; where there is none, tests that ask for it are skipped and say so.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from enum import IntFlag
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("shim.c")
# As struct control of shim.c.
_LAYOUT = struct.Struct("=qqqii240s")
_WALL, _REMAINING, _INJECTED, _ERROR, _CALLS, _PATH = range(6)


class Calls(IntFlag):
    """File calls that can be made to fail."""

    WRITE = 1
    SYNC = 2
    ALLOCATE = 4
    TRUNCATE = 8


def built(directory: Path) -> Path:
    """The shared library, built there; skips the test where no compiler is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fault shim with")
    library = directory / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class MachineFaults:
    """The controls of one machine. `environment` is for the processes that live on it."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(_LAYOUT.size))
        self.environment = {"LD_PRELOAD": str(library), "FASTI_FAULTS": str(control)}
        with control.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _LAYOUT.size)

    def set_clock(self, ahead_s: float) -> None:
        """The wall clock is off by so much from now on; negative: behind. 0: right again."""
        self._mapped[:8] = struct.pack("=q", round(ahead_s * 1e9))

    def fail(self, calls: Calls, error: int, path_part: str, times: int = -1) -> None:
        """The next `times` such calls on files whose path has that part fail with that errno."""
        wall = self._read()[_WALL]
        assert len(os.fsencode(path_part)) < 240
        # The error last: the others hold when it does.
        given = (wall, times, self.injected, 0, calls, os.fsencode(path_part))
        self._mapped[:] = _LAYOUT.pack(*given)
        self._mapped[24:28] = struct.pack("=i", error)

    def heal(self) -> None:
        """File calls work again."""
        self._mapped[24:28] = struct.pack("=i", 0)

    @property
    def injected(self) -> int:
        """Calls that were made to fail."""
        count: int = self._read()[_INJECTED]
        return count

    def _read(self) -> tuple[int, int, int, int, int, bytes]:
        return _LAYOUT.unpack(self._mapped[:])
