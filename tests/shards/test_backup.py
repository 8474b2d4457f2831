"""Backups of a broker of four shards: taken while it runs, again for what is new, and restored whole."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app
from fasti.client.client import Client
from fasti.errors import AlreadyExists, FastiError, InvalidArgument
from fasti.storage.shard_folders import open_folders, read_folders
from fasti.storage.tools import restore as restoring
from fasti.storage.tools.backup import back_up_directory
from fasti.storage.tools.restore import restore
from tests.integration.serve_rig import SMALL

SHARDS = 4
FAR_US = 4_000_000_000_000_000


def put(client: Client, topic: str, batch: int) -> None:
    sink = client.sink(topic, topic)
    with sink.stage(batch, 0, 0) as stage:
        contents = [b"%d %d" % (batch, n) for n in range(100)]
        stage.write(pa.record_batch({"payload": contents, "due_us": [FAR_US] * 100}))
    sink.publish(batch, [stage.staged.name])


def payloads(client: Client, topic: str) -> list[bytes]:
    return sorted(client.messages(topic).list(payload=True)["payload"].to_pylist())


def test_a_backup_has_every_shard_and_is_restored_with_lives_of_its_own(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", shards=SHARDS, processes=2, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("emails")
            put(client, "emails", 0)
            first = client.backup(tmp_path / "backup")
            assert len(first.shards) == SHARDS
            client.create_topic("later")
            put(client, "later", 0)
            again = client.backup(tmp_path / "backup")
            assert again.shard == first.shard
            before = client.feed().last
            expected = {topic: payloads(client, topic) for topic in ("emails", "later")}
    done = restore(tmp_path / "backup", tmp_path / "restored")
    assert done.topics >= 2
    with pytest.raises(AlreadyExists):
        restore(tmp_path / "backup", tmp_path / "restored")
    with BrokerProcess(tmp_path / "restored", settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            assert client.transport.shard_count == SHARDS
            assert {topic: payloads(client, topic) for topic in expected} == expected
            # Each journal begins a new life; the sinks' batches are remembered.
            assert not set(client.feed().last.frames) & set(before.frames)
            assert client.sink("emails", "emails").publish(0, []).repeated
            client.create_topic("newest")
            put(client, "newest", 0)
            assert len(payloads(client, "newest")) == 100


@pytest.mark.parametrize("dies_at", ["folders", "third shard"])
def test_a_restore_that_was_interrupted_can_not_be_opened_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    with BrokerProcess(tmp_path / "data", shards=SHARDS, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("emails")
            put(client, "emails", 0)
    done = back_up_directory(tmp_path / "data", tmp_path / "backup")
    assert len(done.shards) == SHARDS

    class Dies(Exception):
        pass

    real, places = restoring._restore_shard, list[Path]()

    def dying(backup: Path, target: Path, progress: None) -> restoring.Restored:
        places.append(target)
        if len(places) == 3:
            raise Dies
        return real(backup, target, progress)

    def dying_early(path: Path, shards: int) -> None:
        open_folders(path, shards)
        raise Dies

    if dies_at == "folders":
        # The number of shards is known there, and nothing of what they hold.
        monkeypatch.setattr(restoring, "open_folders", dying_early)
    else:
        monkeypatch.setattr(restoring, "_restore_shard", dying)
    with pytest.raises(Dies):
        restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(FastiError, match="restore"):
        BrokerProcess(tmp_path / "restored", settings=SMALL).close()
    monkeypatch.undo()
    restore(tmp_path / "backup", tmp_path / "restored")
    with fasti.connect(f"embedded:{tmp_path / 'restored'}") as client:
        assert len(payloads(client, "emails")) == 100


def test_the_command_line_says_how_many_shards(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", shards=2, settings=SMALL) as broker:
        runner, backup = CliRunner(), str(tmp_path / "backup")
        result = runner.invoke(app, ["backup", backup, "--address", broker.address])
        assert result.exit_code == 0, result.output
        assert "a backup of 2 shards" in result.output
        result = runner.invoke(app, ["backup", backup, "--address", broker.address, "--json"])
        assert len(json.loads(result.output)["shards"]) == 2
    result = runner.invoke(app, ["restore", backup, str(tmp_path / "restored")])
    assert result.exit_code == 0, result.output
    assert "on 2 shards" in result.output
    assert read_folders(tmp_path / "restored").shards == 2
    with pytest.raises(InvalidArgument, match="is not a backup"):
        back_up_directory(tmp_path / "restored", tmp_path / "data")
