"""The file that says how many shards a directory has."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from fasti.errors import Corruption, InvalidArgument, NewerFormat
from fasti.storage.directory import directory_storage, shard_storages
from fasti.storage.shard_folders import SHARDS_NAME, open_folders, read_folders


def test_one_shard_needs_no_file(tmp_path: Path) -> None:
    folders = open_folders(tmp_path / "data", 1)
    assert (folders.shards, folders.cluster, folders.folders()) == (1, "", [tmp_path / "data"])
    assert not (tmp_path / "data").exists()


def test_several_are_kept_under_a_name_of_their_own(tmp_path: Path) -> None:
    made = open_folders(tmp_path / "deep" / "data", 3)
    assert made.cluster
    assert [folder.name for folder in made.folders()] == ["shard-0", "shard-1", "shard-2"]
    assert all(folder.is_dir() for folder in made.folders())
    assert open_folders(made.root) == open_folders(made.root, 3) == read_folders(made.root) == made
    assert sorted(path.name for path in made.root.iterdir()) == [
        SHARDS_NAME,
        *("shard-0", "shard-1", "shard-2"),
    ]


def test_the_number_never_changes(tmp_path: Path) -> None:
    open_folders(tmp_path / "three", 3)
    for other in (1, 2, 4):
        with pytest.raises(InvalidArgument, match="has 3 shards") as refused:
            open_folders(tmp_path / "three", other)
        assert refused.value.limit == 3
    with pytest.raises(InvalidArgument, match="between 1 and"):
        open_folders(tmp_path / "none", 0)


def test_a_directory_with_one_shard_gets_no_more(tmp_path: Path) -> None:
    from fasti.storage.local_shard import LocalShard

    LocalShard(directory_storage(tmp_path)).close()
    with pytest.raises(InvalidArgument, match="can't get 4"):
        open_folders(tmp_path, 4)
    assert open_folders(tmp_path).shards == 1
    assert not (tmp_path / SHARDS_NAME).exists()


def test_several_are_never_opened_as_one(tmp_path: Path) -> None:
    open_folders(tmp_path, 2)
    with pytest.raises(InvalidArgument, match="has 2 shards"):
        directory_storage(tmp_path)
    assert sorted(shard_storages(tmp_path)[1]) == [0, 1]
    assert sorted(shard_storages(tmp_path, numbers=[1])[1]) == [1]
    with pytest.raises(InvalidArgument, match="no shard 2"):
        shard_storages(tmp_path, numbers=[2])


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / SHARDS_NAME
    for stored in (b"", b"{", b'{"format": 1, "shards": 1, "cluster": "x"}', b'{"format": 1}'):
        path.write_bytes(stored)
        with pytest.raises(Corruption):
            open_folders(tmp_path)
        assert path.read_bytes() == stored
    path.write_text(json.dumps({"format": 9, "shards": 2}))
    with pytest.raises(NewerFormat):
        open_folders(tmp_path, 2)


def test_processes_that_make_one_directory_agree(tmp_path: Path) -> None:
    begin = threading.Barrier(8)
    found = []

    def make() -> None:
        begin.wait()
        found.append(open_folders(tmp_path / "data", 4))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
