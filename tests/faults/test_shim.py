"""The faulty machine itself: a broker that runs on it feels its faults."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


_NAMES = """
import mmap, os, sys
path = sys.argv[1]
def opened():
    os.close(os.open(path, os.O_RDWR | os.O_CREAT))
def mapped():
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, b"abc", 0)
    mmap.mmap(file, 0).close()
calls = (opened, mapped, lambda: os.rename(path, path + "-2"), lambda: os.unlink(path + "-2"))
if len(sys.argv) > 2:
    folder, path = os.open(os.path.dirname(path), os.O_RDONLY), os.path.basename(path)
    def opened():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, dir_fd=folder))
    def mapped():
        file = os.open(path, os.O_RDWR, dir_fd=folder)
        os.pwrite(file, b"abc", 0)
        mmap.mmap(file, 0).close()
    def renamed():
        os.rename(path, path + "-2", src_dir_fd=folder, dst_dir_fd=folder)
    calls = (opened, mapped, renamed, lambda: os.unlink(path + "-2", dir_fd=folder))
for call in calls:
    try:
        call()
        print("done")
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.parametrize("how", [(), ("in a folder",)])
def test_the_nth_call_fails_of_those_that_touch_names_and_maps(
    how: tuple[str, ...], machine: MachineFaults, tmp_path: Path
) -> None:
    calls = Calls.OPEN | Calls.MAP | Calls.RENAME | Calls.UNLINK
    # Open, open, map, rename, unlink.
    expected = {0: 0, 2: 1, 3: 2, 4: 3}
    for after, place in expected.items():
        machine.fail(calls, errno.EIO, "file", times=1, after=after)
        command = [sys.executable, "-c", _NAMES, str(tmp_path / f"file-{after}"), *how]
        told = subprocess.check_output(command, env=machine.environment, text=True).split()
        assert told[place] == str(errno.EIO), (after, told)
        assert told[:place] == ["done"] * place


def test_a_call_that_hangs_returns_when_the_machine_is_healed(
    machine: MachineFaults, tmp_path: Path
) -> None:
    machine.hang(Calls.SYNC, "file")
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "file")]
    process = subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True)
    while not machine.injected:
        assert process.poll() is None
        time.sleep(0.001)
    assert process.poll() is None
    machine.heal()
    told, _ = process.communicate(timeout=60)
    assert told.split()[1:] == ["done", "done", "done"]
