"""Tools for a data directory at rest, backups and restores, where there are several shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fasti
from fasti.cli.main import app
from fasti.errors import Corruption, FastiError, InvalidArgument
from fasti.storage.shard_folders import read_folders
from fasti.storage.tools.restore import restore

SHARDS = 3
SEGMENT = {"segment_bytes": 1 << 18}


def connect(path: Path, **options: int) -> fasti.Client:
    return fasti.connect(f"embedded:{path}", **SEGMENT, **options)


def fill(client: fasti.Client, first: int, count: int) -> None:
    with client.producer("jobs") as producer:
        keys = [f"k{number}" for number in range(first, first + count)]
        producer.send_batch([key.encode() for key in keys], key=keys, delay="1h")


def keys_of(client: fasti.Client) -> set[str]:
    table = client.messages("jobs").list(payload=True)
    return {payload.decode() for payload in table.column("payload").to_pylist()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with connect(tmp_path / "data", shards=SHARDS) as client:
        client.create_topic("jobs")
        fill(client, 0, 60)
    return tmp_path / "data"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    return done.exit_code, done.output


def test_tools_go_over_all_folders_and_name_them(data: Path) -> None:
    for command in ("verify", "stats", "repair", "scrub", "reset-clock"):
        code, text = run("storage", command, data)
        assert code == 0, text
        for number in range(SHARDS):
            assert f"shard-{number}:" in text
        code, text = run("storage", command, data, "--json")
        assert sorted(json.loads(text)["shards"]) == ["shard-0", "shard-1", "shard-2"]


def test_damage_of_one_shard_is_found_there(data: Path) -> None:
    block = min((data / "shard-1" / "blocks").glob("*.rows"))
    block.write_bytes(block.read_bytes()[:-8] + bytes(8))
    code, text = run("storage", "verify", data, "--json")
    found = json.loads(text)["shards"]
    assert code == 1
    assert [each["ok"] for each in found.values()] == [True, False, True]
    code, text = run("storage", "verify", data / "shard-0", "--json")
    assert code == 0, "a folder is a directory of its own to the tools"


def test_a_backup_has_all_shards_and_is_restored_under_new_names(
    data: Path, tmp_path: Path
) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    with connect(data) as client:
        first = client.backup(copy)
        assert len(first.shards) == SHARDS
        fill(client, 60, 10)
        again = client.backup(copy)
        assert again.copied_bytes <= first.size_bytes + again.size_bytes
        before = keys_of(client)
    assert len(before) == 70
    restored = restore(copy, back)
    assert restored.topics >= 1
    assert read_folders(back).cluster != read_folders(data).cluster
    with connect(back) as client:
        assert keys_of(client) == before
        client.create_topic("more")
        fill(client, 70, 10)
        assert len(keys_of(client)) == 80
    code, text = run("storage", "verify", back)
    assert code == 0, text


def test_a_backup_at_rest_is_the_same(data: Path, tmp_path: Path) -> None:
    code, text = run("backup", tmp_path / "copy", "--data", data, "--json")
    assert code == 0, text
    assert len(json.loads(text)["shards"]) == SHARDS
    code, text = run("restore", tmp_path / "copy", tmp_path / "back")
    assert code == 0, text
    with connect(tmp_path / "back") as client:
        assert len(keys_of(client)) == 60


def test_backups_of_different_brokers_do_not_mix(data: Path, tmp_path: Path) -> None:
    for shards, path in ((1, "one"), (SHARDS, "other")):
        with connect(tmp_path / path, shards=shards) as client:
            client.create_topic("jobs")
            client.backup(tmp_path / f"copy-{path}")
    with connect(data) as client:
        for path in ("copy-one", "copy-other"):
            with pytest.raises(FastiError):
                client.backup(tmp_path / path)
    with connect(tmp_path / "one") as client, pytest.raises(FastiError):
        client.backup(tmp_path / "copy-other")


def test_an_unfinished_restore_is_not_opened_and_begins_anew(data: Path, tmp_path: Path) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    with connect(data) as client:
        client.backup(copy)
    damaged = next((copy / "shard-2" / "journal").iterdir())
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    with pytest.raises(Corruption):
        restore(copy, back)
    with pytest.raises(FastiError, match="restor"):
        connect(back)
    damaged.write_bytes(whole)
    restore(copy, back)
    with connect(back) as client:
        assert len(keys_of(client)) == 60


def test_a_copy_of_several_shards_is_not_cloned_in_place(data: Path) -> None:
    with pytest.raises(InvalidArgument, match="several shards"):
        fasti.connect(f"embedded:{data}", clone=True, **SEGMENT)
