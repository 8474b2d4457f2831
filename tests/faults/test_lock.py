"""The lock of a data directory: a broker that could not write it down doesn't shut itself out."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.errors import DataDirLocked, FastiError, StorageFailed
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from tests.faults.conftest import Tried
from tests.faults.shim import Calls, MachineFaults
from tests.integration.serve_rig import SMALL


@pytest.mark.fault(
    "lock", "the pid can't be written when the shard opens again", "tried again; nothing lost"
)
def test_failed_writes_of_the_lock_are_tried_again(
    machine: MachineFaults, tmp_path: Path, tried: Tried
) -> None:
    with (
        BrokerProcess(tmp_path / "data", env=machine.environment, settings=SMALL) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        client.producer("t").send(b"before").result(20)
        # The journal's next write, and then the lock's two first ones.
        machine.fail(Calls.WRITE, errno.EIO, ".segment|/LOCK", times=3)
        assert client.producer("t").send(b"during").result(20).ok
        assert machine.injected == 3
        tried.times = machine.injected
        assert broker.running
        assert client.messages("t").count()["ready"] == 2


def test_a_lock_that_could_not_be_taken_whole_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(tmp_path)
    for call in ("ftruncate", "pwrite"):
        with monkeypatch.context() as patch:

            def fail(*_: object) -> int:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            patch.setattr(os, call, fail)
            with pytest.raises(StorageFailed):
                files.lock()
        files.lock().release()
    held = files.lock()
    with pytest.raises(DataDirLocked) as refused:
        files.lock()
    assert refused.value.pid == os.getpid()
    held.release()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "call", ["open", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "rename", "mmap"]
)
def test_an_opening_that_fails_leaves_nothing_open(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its file calls fails once; then the directory can be opened, by this very process."""
    settings = ShardSettings(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096)
    Shard(FileStorage(LocalFiles(tmp_path)), settings).close()
    gc.collect()
    module: Any = mmap if call == "mmap" else os
    real, before = getattr(module, call), descriptors()
    for nth in range(0, 300, 8 if call == "open" else 1):
        left = [nth]

        def fail_once(*given: Any, left: list[int] = left, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*given, **more)

        with monkeypatch.context() as patch:
            patch.setattr(module, call, fail_once)
            with suppress(FastiError, OSError):
                Shard(FileStorage(LocalFiles(tmp_path)), settings).close(checkpoint=False)
        gc.collect()
        # What earlier tests left may be closed meanwhile.
        assert descriptors() <= before, nth
        if left[0] >= 0:
            return
    raise AssertionError("an opening has no end")
