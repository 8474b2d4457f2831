"""Files in memory behave as those of a folder, as far as anybody can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import AlreadyExists, InvalidArgument, NotFound
from fasti.model import TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files, LocalFiles
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from tests.integration.shard_rig import NOW_US, SETTINGS


@pytest.fixture(params=["memory", "folder"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MemoryFiles() if request.param == "memory" else LocalFiles(tmp_path)


def test_files_are_made_written_read_and_listed(files: Files) -> None:
    file = files.create("a/one", 4)
    assert (file.name, file.size) == ("a/one", 4)
    assert file.write_at(2, [b"xy", b"", b"z"]) == 3
    file.sync()
    assert file.size == 5
    assert file.read_at(0, 99) == b"\0\0xyz"
    again = files.open("a/one", writable=False)
    assert bytes(again.map()) == b"\0\0xyz"
    files.create("b", 0).close()
    assert files.list("") == ["a/one", "b"]
    assert files.list("a/") == ["a/one"]
    assert files.exists("b")
    file.close()
    again.close()


def test_names_change_hands(files: Files) -> None:
    files.replace("x", b"old")
    files.replace("x", b"new")
    files.rename("x", "y")
    files.sync_directory("")
    assert not files.exists("x")
    found = files.open("y", writable=False)
    assert found.read_at(0, 9) == b"new"
    found.close()
    files.delete("y")
    for miss in (files.delete, lambda name: files.open(name, writable=False)):
        with pytest.raises(NotFound):
            miss("y")


def test_names_that_are_taken_or_lead_away(files: Files) -> None:
    files.create("x", 0).close()
    with pytest.raises(AlreadyExists):
        files.create("x", 0)
    with pytest.raises(InvalidArgument):
        files.create("../x", 0)


def test_a_view_stays_as_it_was_when_the_file_grows(files: Files) -> None:
    file = files.create("x", 2)
    file.write_at(0, [b"ab"])
    view = file.map()
    file.write_at(2, [b"cd"])
    assert bytes(view[:2]) == b"ab"
    assert file.read_at(0, 4) == b"abcd"
    del view
    file.close()


def test_a_shard_opens_again_on_them() -> None:
    files = MemoryFiles()
    shard = LocalShard(FileStorage(files), SETTINGS)
    shard.call(co.CreateTopic("t", TopicSettings()), NOW_US, 0)
    shard.call(co.Produce("t", Rows.of([b"one"]), co.When(due_us=NOW_US)), NOW_US, 0)
    shard.checkpoint(NOW_US, 0)
    shard.call(co.Produce("t", Rows.of([b"two"]), co.When(due_us=NOW_US)), NOW_US, 0)
    shard.close()
    again = LocalShard(FileStorage(files), SETTINGS)
    assert again.call(co.Count("t"), NOW_US, 0).states["ready"] == 2
    again.close()
