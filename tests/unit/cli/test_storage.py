"""The storage commands: what they print, and with which code they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app
from fasti.config import ShardSettings
from fasti.core.commands import Count, CreateTopic, Produce, When
from fasti.core.keys import Rows
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from fasti.storage.local_shard import LocalShard

NOW = 1_000_000_000
SETTINGS = ShardSettings(segment_bytes=65_536)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shard = LocalShard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
    shard.call(CreateTopic("emails"), NOW, 0)
    for _ in range(5):
        shard.call(Produce("emails", Rows.of([b"x"] * 10), When(delay_us=9)), NOW, 0)
    shard.close()
    return tmp_path


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["storage", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def damage_third_frame(directory: Path) -> None:
    """A wrong byte in the body of an acknowledged frame in the middle of the journal."""
    segment = next((directory / "journal").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    place = -1
    for _ in range(3):
        place = data.index(b"\xf5FRM", place + 1)
    data[place + 80] ^= 0xFF
    segment.write_bytes(data)


def test_a_sound_directory(directory: Path) -> None:
    code, text, _ = run("verify", directory)
    assert code == 0
    assert text.rstrip().endswith("ok")
    code, text, _ = run("verify", directory, "--json")
    assert code == 0
    assert json.loads(text)["ok"]
    assert json.loads(text)["in_use"] is False
    assert run("repair", directory)[0] == 0


def test_damage_is_told_repaired_on_request_only_and_kept(directory: Path) -> None:
    damage_third_frame(directory)
    code, text, _ = run("verify", directory, "--json")
    assert code == 1
    assert [finding["kind"] for finding in json.loads(text)["findings"]] == ["damaged_frame"]
    assert "damaged_frame" in run("verify", directory)[1]

    before = {path: path.read_bytes() for path in (directory / "journal").iterdir()}
    code, text, _ = run("repair", directory, "--json")
    assert code == 1
    assert [action["kind"] for action in json.loads(text)["actions"]] == ["cut", "rebase"]
    assert {path: path.read_bytes() for path in (directory / "journal").iterdir()} == before

    code, text, _ = run("repair", directory, "--apply", "--json")
    assert code == 0
    assert json.loads(text)["applied"]
    assert list((directory / "lost+found").iterdir())
    assert run("verify", directory)[0] == 0
    assert json.loads(run("stats", directory, "--json")[1])["topics"][0]["name"] == "emails"


def test_a_gap_before_later_frames_of_the_same_topic(directory: Path) -> None:
    """Ids have no holes in a journal: one that was left by a repair must not stop an opening."""
    damage_third_frame(directory)
    code, text, _ = run("repair", directory, "--allow-gap", "--apply", "--json")
    assert code == 0
    told = json.loads(text)
    assert [action["kind"] for action in told["actions"]] == ["void", "rebase"]
    (topic,) = told["losses"]["topics"]
    assert (topic["topic"], topic["lost"], topic["uncertain"]) == ("emails", 10, 10)
    assert topic["ids"] == [{"partition": 0, "first": 11, "last": 20}]
    assert topic["possible"][0]["first"] == 51
    code, text, _ = run("verify", directory)
    assert code == 0, text
    shard = LocalShard(FileStorage(LocalFiles(directory)), SETTINGS)
    assert shard.call(Count("emails"), NOW, 0).states["scheduled"] == 40
    reply = shard.call(Produce("emails", Rows.of([b"new"])), NOW, 0)
    assert reply.ids.tolist() == [topic["possible"][0]["last"] + 1]
    shard.close()
    assert run("repair", directory)[0] == 0


def test_losses_for_people(directory: Path) -> None:
    damage_third_frame(directory)
    code, text, _ = run("repair", directory, "--allow-gap", "--apply")
    assert code == 0
    assert "frames given up: 3 to 3" in text
    assert "11-20" in text
    assert "may be delivered again" in " ".join(text.split())


def test_stats_for_people_and_programs(directory: Path) -> None:
    code, text, _ = run("stats", directory)
    assert code == 0
    assert "emails" in text
    held = json.loads(run("stats", directory, "--json")[1])
    assert sum(held["topics"][0]["states"].values()) == 50


def test_errors_are_one_line_and_an_exit_code_of_their_own(directory: Path) -> None:
    code, _, problem = run("verify", directory / "nothing")
    assert code == ERROR_EXITS["not_found"]
    assert problem.startswith("error not_found: ")
    shard = LocalShard(FileStorage(LocalFiles(directory)), SETTINGS)
    try:
        for command in ("stats", "repair"):
            flags = ["--apply"] if command == "repair" else []
            code, _, problem = run(command, directory, *flags)
            assert code == ERROR_EXITS["locked"]
            assert problem.startswith("error locked: ")
        code, text, _ = run("verify", directory)
        assert code == 0
        assert "in use" in text
    finally:
        shard.close()


def test_a_scrub_of_a_directory(directory: Path) -> None:
    shard = LocalShard(FileStorage(LocalFiles(directory)), SETTINGS)
    shard.checkpoint(NOW, 0)
    shard.close()
    code, text, _ = run("scrub", directory)
    assert code == 0
    assert text.rstrip().endswith("no damage")
    (block,) = directory.glob("blocks/*.payloads")
    data = bytearray(block.read_bytes())
    data[data.index(b"x" * 50)] ^= 1
    block.write_bytes(data)
    code, text, _ = run("scrub", directory, "--json", "--rate", "100MiB")
    (found,) = json.loads(text)["findings"]
    assert code == 1
    assert found["file"] == f"blocks/{block.name}"
    assert found["lost"][0]["topic"] == "emails"
    assert "DAMAGED" in run("scrub", directory)[1]
