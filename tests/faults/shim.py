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
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("shim.c")
# As struct control of shim.c.
_LAYOUT = struct.Struct("=qqqqiiii240s")
_WALL, _INJECTED = 0, 2
# Where the numbers begin that say that calls hang, and that they fail.
_HANGS_AT, _ERROR_AT = 32, 40


class Calls(IntFlag):
    """File calls that can be made to fail."""

    WRITE = 1
    SYNC = 2
    ALLOCATE = 4
    TRUNCATE = 8
    OPEN = 16
    RENAME = 32
    UNLINK = 64
    MAP = 128


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

    def fail(
        self, calls: Calls, error: int, path_part: str, times: int = -1, after: int = 0
    ) -> None:
        """The next `times` such calls on files whose path has that part fail with that errno, but
        for the first `after`. `a|b`: either part. Of a rename the old name counts.
        """
        self._set(calls, path_part, times, after)
        self._mapped[_ERROR_AT : _ERROR_AT + 4] = struct.pack("=i", error)

    def hang(self, calls: Calls, path_part: str, times: int = -1) -> None:
        """The next such calls don't return before the machine is healed."""
        self._set(calls, path_part, times)
        self._mapped[_HANGS_AT : _HANGS_AT + 4] = struct.pack("=i", 1)

    def _set(self, calls: Calls, path_part: str, times: int, after: int = 0) -> None:
        """What fails, before anything does."""
        assert len(os.fsencode(path_part)) < 240
        self.heal()
        wall, path = self._read()[_WALL], os.fsencode(path_part)
        self._mapped[:] = _LAYOUT.pack(wall, times, self.injected, after, 0, 0, 0, calls, path)

    def heal(self) -> None:
        """File calls work again."""
        self._mapped[_ERROR_AT : _ERROR_AT + 4] = struct.pack("=i", 0)
        self._mapped[_HANGS_AT : _HANGS_AT + 4] = struct.pack("=i", 0)

    @property
    def injected(self) -> int:
        """Calls that were made to fail."""
        count: int = self._read()[_INJECTED]
        return count

    def _read(self) -> tuple[Any, ...]:
        return _LAYOUT.unpack(self._mapped[:])
