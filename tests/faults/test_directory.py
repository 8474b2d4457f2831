"""The data directory itself: who may read it, and what lies in it that isn't its own."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import Corruption, FastiError, PermissionDenied
from fasti.storage.directory import clone_directory
from fasti.storage.files import LocalFiles
from fasti.storage.files.safe_open import tighten
from fasti.storage.runs import object_name
from fasti.storage.tools.inspect import inspect
from tests.faults.conftest import Tried


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): _mode(path) for path in root.rglob("*")}


@pytest.mark.fault(
    "directory",
    "a umask of 0 and one of 0777, and a directory that was open to all",
    "0700 and 0600, of a backup too; an open directory is closed, with a warning",
)
def test_nobody_else_can_read_what_a_broker_writes(tmp_path: Path, tried: Tried) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    data.mkdir()
    data.chmod(0o755)
    before = os.umask(0)
    try:
        with BrokerProcess(data) as broker:
            assert f"{data} was open to other users (0755), and is not any more" in broker.log()
            with fasti.connect(broker.address) as client:
                client.create_topic("t")
                client.producer("t").send(b"secret", delay="1h").result()
                client.checkpoint()
                client.backup(copy)
    finally:
        os.umask(before)
    for root in (data, copy):
        assert _mode(root) == 0o700
        for name, mode in _modes(root).items():
            assert mode == (0o700 if (root / name).is_dir() else 0o600), name
    before = os.umask(0o777)
    try:
        with fasti.connect(f"embedded:{tmp_path / 'other'}") as client:
            client.create_topic("t")
    finally:
        os.umask(before)
    assert set(_modes(tmp_path / "other").values()) == {0o700, 0o600}
    tried.times = 3


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.fault(
    "directory",
    "symbolic links, fifos and folders in place of files and folders",
    "`permission_denied` at the start, naming it; nothing is followed, and nothing hangs",
)
@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("journal", _link),
        ("blocks", _link),
        ("LOCK", _link),
        ("LOCK", _fifo),
        ("blocks/MANIFEST", _link),
        ("blocks/MANIFEST", _fifo),
        ("journal/00000000000000000001.segment", _link),
        ("journal/00000000000000000001.segment", _fifo),
    ],
)
def test_what_is_no_file_is_refused(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    with fasti.connect(f"embedded:{tmp_path}/data") as client:
        client.create_topic("t")
    harm(tmp_path / "data" / name)
    with pytest.raises(PermissionDenied, match=r"symbolic link|fifo") as caught:
        fasti.connect(f"embedded:{tmp_path}/data")
    assert name in caught.value.message


@pytest.mark.fault(
    "directory",
    "LOCK and a spare segment linked to a file elsewhere",
    "the file elsewhere stays as it was",
)
def test_a_file_elsewhere_is_not_overwritten(tmp_path: Path, tried: Tried) -> None:
    data, precious = tmp_path / "data", tmp_path / "precious"
    precious.write_bytes(b"precious" * 1000)
    with fasti.connect(f"embedded:{data}", segment_bytes=1 << 16) as client:
        client.create_topic("t")
    (data / "LOCK").unlink()
    os.link(precious, data / "LOCK")
    with pytest.raises(PermissionDenied, match="is not a lock file"):
        BrokerProcess(data)
    (data / "LOCK").unlink()
    precious.write_bytes(bytes(1 << 16))
    for spare in (data / "journal").glob("spare-*"):
        spare.unlink()
    for number in range(3):
        os.link(precious, data / "journal" / f"spare-{number:08d}.ready")
    with fasti.connect(f"embedded:{data}", segment_bytes=1 << 16) as client:
        client.producer("t").send(b"x" * 1000, delay="1h").result()
    assert precious.read_bytes() == bytes(1 << 16)
    tried.times = 4


def test_segments_with_another_name_are_not_written_again(tmp_path: Path) -> None:
    """Somebody keeps hard links of a directory: its files become no new segments."""
    data = tmp_path / "data"
    with fasti.connect(f"embedded:{data}", segment_bytes=1 << 16) as client:
        client.create_topic("t")
        client.producer("t").send(b"x" * 1000, delay="1h").result()
    kept = {}
    for segment in (data / "journal").glob("*.segment"):
        kept[tmp_path / segment.name] = segment.read_bytes()
        os.link(segment, tmp_path / segment.name)
    with fasti.connect(f"embedded:{data}", segment_bytes=1 << 16) as client:
        for _ in range(8):
            client.producer("t").send(b"y" * 30_000, delay="1h").result()
            client.checkpoint()
    assert {path: path.read_bytes() for path in kept} == kept
    assert kept


def test_the_path_of_the_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to("real")
    with fasti.connect(f"embedded:{tmp_path}/data") as client:
        client.create_topic("t")
    assert (tmp_path / "real" / "blocks" / "MANIFEST").is_file()
    assert _mode(tmp_path / "real") == 0o700


def test_only_folders_that_are_ours_are_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letters.txt").touch()
    assert "chmod 700" in (tighten(tmp_path) or "")
    assert _mode(tmp_path) == 0o755
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert "chmod 700" in (tighten(shared) or "")
    assert _mode(shared) == 0o1777
    private = tmp_path / "private"
    LocalFiles(private)
    assert tighten(private) is None


@pytest.mark.parametrize("call", ["open", "delete", "list", "exists", "create", "rename"])
def test_no_call_follows_a_folder_that_is_a_link(tmp_path: Path, call: str) -> None:
    files = LocalFiles(tmp_path / "data")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"outside")
    (tmp_path / "data" / "blocks").symlink_to(tmp_path / "outside")
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: files.open("blocks/file", writable=True),
        "delete": lambda: files.delete("blocks/file"),
        "list": lambda: files.list("blocks/"),
        "exists": lambda: files.exists("blocks/file"),
        "create": lambda: files.create("blocks/new", 0),
        "rename": lambda: files.rename("blocks/file", "blocks/new"),
    }
    with pytest.raises(FastiError, match="symbolic link"):
        calls[call]()
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]


# Copies


def _shard_name(client: fasti.Client) -> str:
    return client.feed().last.shard


def _made(data: Path) -> str:
    with fasti.connect(f"embedded:{data}") as client:
        client.create_topic("t")
        client.producer("t").send(b"x", delay="1h").result()
        return _shard_name(client)


@pytest.mark.fault(
    "directory",
    "a copy opened elsewhere, with --clone and without",
    "a warning and `fasti_directory_copied` 1, once; with --clone a shard name of its own, once",
)
def test_a_copy_that_is_opened_elsewhere(tmp_path: Path, tried: Tried) -> None:
    data = tmp_path / "data"
    shard = _made(data)
    for name in ("plain", "clone"):
        shutil.copytree(data, tmp_path / name)
    seen = []
    for name, clone in [("plain", False), ("plain", False), ("clone", True), ("clone", True)]:
        with BrokerProcess(tmp_path / name, settings={"clone": clone}) as broker:
            with fasti.connect(broker.address) as client:
                assert client.messages("t").count()["scheduled"] == 1
                copied = "fasti_directory_copied 1.0" in client.metrics()
                seen.append((_shard_name(client) == shard, copied))
            warnings = broker.log().count(f"looks like a copy of {data}")
        assert warnings == copied
    assert seen[:2] == [(True, True), (True, False)]
    assert seen[2:] == [(False, False), (False, False)]
    with fasti.connect(f"embedded:{tmp_path / 'clone'}", clone=True) as client:
        client.producer("t").send(b"y", delay="1h").result()
        assert client.messages("t").count()["scheduled"] == 2
    tried.times = 4


def test_a_clone_keeps_its_new_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _made(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    names = []
    for clone in (True, True, False):
        with fasti.connect(f"embedded:{tmp_path / 'copy'}", clone=clone) as client:
            names.append(_shard_name(client))
    assert len(set(names)) == 1
    # A copy of the clone is a copy again.
    shutil.copytree(tmp_path / "copy", tmp_path / "next")
    with fasti.connect(f"embedded:{tmp_path / 'next'}", clone=True) as client:
        assert _shard_name(client) not in names
        assert client.messages("t").count()["scheduled"] == 1
    assert "looks like a copy" not in caplog.text


def test_a_copy_with_an_unfinished_checkpoint_is_cloned(tmp_path: Path) -> None:
    _made(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy)
    named = {path.name for path in (copy / "blocks").iterdir()}
    for number in range(1, 10):
        for suffix in ("payloads", "rows", "state"):
            name = object_name(1, number, suffix)
            if name not in named:
                (copy / "blocks" / name).write_bytes(b"half")
    with fasti.connect(f"embedded:{copy}", clone=True) as client:
        assert client.messages("t").count()["scheduled"] == 1
    assert inspect(LocalFiles(copy)).ok


def test_a_copy_with_a_shorter_block_is_not_cloned_and_not_changed(tmp_path: Path) -> None:
    _made(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy)
    (payloads,) = (copy / "blocks").glob("*.payloads")
    os.truncate(payloads, payloads.stat().st_size - 1)
    before = (copy / "blocks" / "MANIFEST").read_bytes()
    with pytest.raises(Corruption):
        clone_directory(LocalFiles(copy))
    assert (copy / "blocks" / "MANIFEST").read_bytes() == before


def test_what_was_moved_or_put_back_is_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard = _made(tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "moved")
    with fasti.connect(f"embedded:{tmp_path / 'moved'}") as client:
        assert _shard_name(client) == shard
    # Taken away and put back from an archive: other files at the same place.
    shutil.copytree(tmp_path / "moved", tmp_path / "archive")
    shutil.rmtree(tmp_path / "moved")
    shutil.copytree(tmp_path / "archive", tmp_path / "moved")
    with fasti.connect(f"embedded:{tmp_path / 'moved'}") as client:
        assert _shard_name(client) == shard
    assert "looks like a copy" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"file": "x"}', b"\xff"])
def test_a_home_that_says_nothing_is_no_harm(tmp_path: Path, content: bytes) -> None:
    shard = _made(tmp_path / "data")
    (tmp_path / "data" / "HOME").write_bytes(content)
    with fasti.connect(f"embedded:{tmp_path / 'data'}") as client:
        assert _shard_name(client) == shard


def test_a_new_directory_needs_no_clone(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path / 'data'}", clone=True) as client:
        client.create_topic("t")
        shard = _shard_name(client)
    with fasti.connect(f"embedded:{tmp_path / 'data'}") as client:
        assert _shard_name(client) == shard


def test_a_clone_that_is_interrupted_is_completed(tmp_path: Path) -> None:
    """Before every change of a name: the next opening shows everything, in one life or the other."""
    _made(tmp_path / "data")
    for stop in range(100):
        copy = tmp_path / f"copy{stop}"
        shutil.copytree(tmp_path / "data", copy)
        try:
            clone_directory(_Stopping(copy, stop))
            done = True
        except KeyboardInterrupt:
            done = False
        with fasti.connect(f"embedded:{copy}") as client:
            assert client.messages("t").count()["scheduled"] == 1
        if done:
            assert stop > 5
            return
    pytest.fail("a clone takes more steps than thought")


class _Stopping(LocalFiles):
    """Files whose process ends before one of its changes of names."""

    def __init__(self, root: Path, stop: int) -> None:
        super().__init__(root)
        self._left = stop

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


@pytest.mark.fault(
    "directory",
    "journal and blocks deleted, the rest left",
    "`corruption`, not a new directory",
)
def test_a_directory_that_was_emptied(tmp_path: Path) -> None:
    _made(tmp_path / "data")
    for folder in ("journal", "blocks"):
        shutil.rmtree(tmp_path / "data" / folder)
    with pytest.raises(Corruption, match="are gone"):
        fasti.connect(f"embedded:{tmp_path / 'data'}")
