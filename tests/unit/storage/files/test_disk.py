"""The door to the disk: the local one and its simulated stand-in behave alike."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fasti.errors import (
    AlreadyExists,
    Closed,
    DataDirLocked,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StorageFailed,
    StorageFull,
)
from fasti.storage.files import Files, LocalFiles, translated
from fasti.storage.files import disk as files_module
from fasti.testing.disk import Crashed, SimulatedFiles


@pytest.fixture(params=["local", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return LocalFiles(tmp_path / "data") if request.param == "local" else SimulatedFiles()


def content(files: Files, name: str) -> bytes:
    file = files.open(name, writable=False)
    data = file.read_at(0, file.size)
    file.close()
    return data


def test_a_created_file_has_its_size_and_zeros(files: Files) -> None:
    size = (9 << 20) + 17
    file = files.create("deep/er/a", size)
    assert (file.name, file.size) == ("deep/er/a", size)
    assert not any(file.read_at(size - 100, 100))
    assert file.read_at(size - 1, 10) == b"\0"
    assert file.read_at(size, 10) == b""
    file.close()
    with pytest.raises(AlreadyExists):
        files.create("deep/er/a", 1)


def test_writes_show_in_reads_and_maps(files: Files) -> None:
    file = files.create("a", 100)
    view = file.map()
    assert file.write_at(10, [b"abc", b"", bytearray(b"de"), memoryview(b"f")]) == 6
    file.sync()
    assert file.read_at(9, 8) == b"\0abcdef\0"
    assert view[10:16] == b"abcdef"
    assert view.readonly
    assert file.write_at(98, [b"1234"]) == 4
    assert file.size == 102
    assert file.map()[98:] == b"1234"


def test_more_buffers_than_one_call_takes(files: Files) -> None:
    file = files.create("a", 0)
    buffers = [b"%04d" % number for number in range(5000)]
    assert file.write_at(0, buffers) == 20000
    assert content(files, "a") == b"".join(buffers)


def test_partial_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def stingy(descriptor: int, views: list[memoryview], offset: int) -> int:
        return real(descriptor, [views[0][:3]], offset)

    file = LocalFiles(tmp_path).create("a", 0)
    monkeypatch.setattr(files_module.os, "pwritev", stingy)
    assert file.write_at(2, [b"abcdefgh", b"ij", b"klmn"]) == 14
    assert file.read_at(0, 99) == b"\0\0abcdefghijklmn"


def test_busy_until_the_last_view_is_gone(files: Files) -> None:
    file = files.create("a", 100)
    assert not file.busy()
    view = file.map()
    part = view[5:10]
    view.release()
    assert file.busy()
    part.release()
    assert not file.busy()


def test_views_outlive_name_and_file(files: Files) -> None:
    file = files.create("a", 8)
    file.write_at(0, [b"12345678"])
    view = file.map()[2:4]
    file.close()
    file.close()
    files.delete("a")
    assert view == b"34"


def test_an_empty_file_can_be_mapped(files: Files) -> None:
    assert len(files.create("a", 0).map()) == 0


def test_names(files: Files) -> None:
    for name in ("b/2", "b/1", "a", "b/c/3"):
        files.create(name, 0).close()
    assert files.list("") == ["a", "b/1", "b/2", "b/c/3"]
    assert files.list("b/") == ["b/1", "b/2", "b/c/3"]
    assert files.list("b/1") == ["b/1"]
    assert files.list("nothing/") == []
    files.rename("b/1", "c/1")
    files.rename("b/2", "a")
    assert files.list("") == ["a", "b/c/3", "c/1"]
    files.delete("a")
    assert not files.exists("a")
    assert files.exists("c/1")
    files.sync_directory("")
    files.sync_directory("c")
    for call in (lambda: files.delete("a"), lambda: files.open("a", False)):
        with pytest.raises(NotFound):
            call()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "a//b", "./a"])
def test_names_stay_inside(files: Files, name: str) -> None:
    with pytest.raises(InvalidArgument):
        files.create(name, 0)
    with pytest.raises(InvalidArgument):
        files.open(name, writable=False)


def test_replace(files: Files) -> None:
    files.replace("a/m", b"one")
    files.create("a/m.tmp", 0).close()  # Left by a process that died in between.
    files.replace("a/m", b"two")
    assert content(files, "a/m") == b"two"
    assert files.list("") == ["a/m"]


def test_free_bytes_and_lock(files: Files) -> None:
    assert files.free_bytes() > 0
    lock = files.lock()
    with pytest.raises(DataDirLocked) as caught:
        files.lock()
    assert caught.value.pid == os.getpid()
    lock.release()
    lock.release()
    files.lock().release()


def test_a_closed_local_file_says_so(tmp_path: Path) -> None:
    file = LocalFiles(tmp_path).create("a", 1)
    file.close()
    for call in (lambda: file.write_at(0, [b"1"]), file.sync, lambda: file.read_at(0, 1), file.map):
        with pytest.raises(Closed):
            call()


HOLDER = """
import sys
from fasti.storage.files import LocalFiles
lock = LocalFiles(sys.argv[1]).lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_another_process_is_kept_out_until_it_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DataDirLocked) as caught:
            LocalFiles(tmp_path).lock()
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in str(caught.value)
        holder.kill()  # Even then: the lock dies with its owner.
    LocalFiles(tmp_path).lock().release()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EACCES, PermissionDenied),
        (errno.EPERM, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.ENOENT, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.EIO, StorageFailed),
        (errno.EMFILE, StorageFailed),
    ],
)
def test_errors_of_the_system_become_ours(number: int, kind: type[Exception]) -> None:
    error = translated(OSError(number, os.strerror(number)), "some/path")
    assert type(error) is kind
    assert "some/path" in str(error)
    assert os.strerror(number) in str(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root is denied nothing")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "data")
    files.create("a", 1).close()
    (tmp_path / "data").chmod(0o500)
    with pytest.raises(PermissionDenied, match="data/b"):
        files.create("b", 1)
    (tmp_path / "data").chmod(0o700)


def test_simulated_permission_and_other_faults() -> None:
    disk = SimulatedFiles()
    disk.create("a", 8).close()
    disk.fail("open", 2, errno.EACCES)
    disk.open("a", writable=True)
    with pytest.raises(PermissionDenied):
        disk.open("a", writable=True)
    file = disk.open("a", writable=True)
    disk.fail("write")
    with pytest.raises(StorageFailed):
        file.write_at(0, [b"12345678"])
    assert file.read_at(0, 8) == b"1234\0\0\0\0"
    disk.fail("create", error=errno.EROFS)
    with pytest.raises(PermissionDenied):
        disk.create("b", 1)
    assert disk.list("") == ["a"]


def test_a_full_local_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files_module.os, "posix_fallocate", full, raising=False)
    with pytest.raises(StorageFull):
        files.create("a", 4096)
    assert files.list("") == []


def test_a_full_simulated_disk() -> None:
    disk = SimulatedFiles(capacity_bytes=1000)
    file = disk.create("a", 600)
    with pytest.raises(StorageFull):
        disk.create("b", 401)
    with pytest.raises(StorageFull):
        file.write_at(600, [bytes(401)])
    assert disk.free_bytes() == 400
    disk.delete("a")
    assert disk.free_bytes() == 1000


def test_a_crash_loses_only_what_was_not_synced() -> None:
    disk = SimulatedFiles()
    file = disk.create("a", 4096)
    disk.sync_directory("")
    file.write_at(0, [b"x" * 2048])
    file.sync()
    file.write_at(1024, [b"y" * 3072])
    disk.create("b", 0)
    outcomes = set()
    names = set()
    for seed in range(300):
        after = disk.crash(random.Random(seed))
        data = content(after, "a")
        assert data[:1024] == b"x" * 1024
        assert set(data[1024:2048]) <= set(b"xy")
        assert set(data[2048:]) <= set(b"\0y")
        outcomes.add(data)
        names.add(tuple(after.list("")))
    assert len(outcomes) > 50
    assert names == {("a",), ("a", "b")}
    again = (disk.crash(random.Random(5)), disk.crash(random.Random(5)))
    assert content(again[0], "a") == content(again[1], "a")


def test_a_failed_sync_forgets_what_it_should_have_written() -> None:
    disk = SimulatedFiles()
    file = disk.create("a", 8)
    disk.sync_directory("")
    disk.fail("sync")
    file.write_at(0, [b"12345678"])
    with pytest.raises(StorageFailed):
        file.sync()
    file.sync()
    assert file.read_at(0, 8) == b"12345678"
    for seed in range(20):
        assert content(disk.crash(random.Random(seed)), "a") == bytes(8)


def test_a_rename_is_lost_whole_or_not_at_all() -> None:
    disk = SimulatedFiles()
    disk.replace("a", b"old")
    file = disk.create("n", 0)
    file.write_at(0, [b"new"])
    file.sync()
    disk.rename("n", "a")
    for seed in range(50):
        after = disk.crash(random.Random(seed))
        assert content(after, "a") in (b"old", b"new")


def test_a_process_stops_before_the_operation_and_stays_dead() -> None:
    disk = SimulatedFiles(stop_before=2)
    file = disk.create("a", 8)
    assert disk.operations == 2
    for _ in range(2):
        with pytest.raises(Crashed):
            file.write_at(0, [b"1"])
    assert disk.operations == 2
    assert file.read_at(0, 1) == b"\0"
