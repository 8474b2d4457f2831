"""The faulty machine itself: a broker that runs on it feels its faults."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.shim import Calls, MachineFaults

_PROGRAM = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
print(time.time())
for call in (lambda: os.pwrite(file, b"a", 0), lambda: os.fsync(file), lambda: os.posix_fallocate(file, 0, 9)):
    try:
        call()
        print("done")
    except OSError as error:
        print(error.errno)
"""


def _run(machine: MachineFaults, path: Path) -> list[str]:
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    return subprocess.check_output(command, env=machine.environment, text=True).split()


def test_the_clock_is_off(machine: MachineFaults, tmp_path: Path) -> None:
    machine.set_clock(-3600)
    told = float(_run(machine, tmp_path / "file")[0])
    assert -3700 < told - time.time() < -3500


def test_the_disk_fails_for_the_files_that_are_named(
    machine: MachineFaults, tmp_path: Path
) -> None:
    machine.fail(Calls.WRITE | Calls.ALLOCATE, errno.ENOSPC, "journal")
    full = str(errno.ENOSPC)
    assert _run(machine, tmp_path / "journal-1")[1:] == [full, "done", full]
    assert _run(machine, tmp_path / "other")[1:] == ["done", "done", "done"]
    assert machine.injected == 2
    machine.heal()
    assert _run(machine, tmp_path / "journal-1")[1:] == ["done", "done", "done"]
