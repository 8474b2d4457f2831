"""Files that became shorter, were zeroed or went missing while no broker had them open."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app
from fasti.errors import Corruption
from fasti.storage.files import LocalFiles
from fasti.storage.frames import ALIGNMENT, MARK, Header, decode_header
from fasti.storage.tools.inspect import stats
from tests.faults.conftest import Tried

# Small, so that several segments come to be.
_SETTINGS = {"segment_size": "1MiB"}
_SENT = 40


def _killed(data: Path, sent: int = _SENT) -> None:
    """A directory whose broker was killed after the last of these messages was acknowledged."""
    with BrokerProcess(data, settings=_SETTINGS) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            producer = client.producer("t")
            for _ in range(sent):
                producer.send(b"x" * 1000, delay="1h").result()
        broker.kill()


def _newest(data: Path) -> Path:
    return max((data / "journal").glob("*.segment"))


def _refused(data: Path) -> str:
    """Why the broker doesn't start; `verify` agrees, and nothing is changed by either."""
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*.segment")}
    with pytest.raises(Corruption) as caught:
        BrokerProcess(data, settings=_SETTINGS)
    verified = CliRunner().invoke(app, ["storage", "verify", str(data), "--json"])
    assert verified.exit_code == 1
    assert not json.loads(verified.stdout)["ok"]
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*.segment")} == before
    return caught.value.message


def _left_after_repair(data: Path) -> int:
    """How many messages a repair leaves; done to a copy."""
    copy = data.with_name("repaired")
    shutil.copytree(data, copy)
    CliRunner().invoke(app, ["storage", "repair", str(copy), "--apply", "--json"])
    verified = CliRunner().invoke(app, ["storage", "verify", str(copy)])
    assert verified.exit_code == 0, verified.stdout
    topics = stats(LocalFiles(copy), 0).topics
    shutil.rmtree(copy)
    return sum(topic.states["scheduled"] for topic in topics)


def _cut(segment: Path) -> None:
    os.truncate(segment, 20_000)


def _cut_unused_part(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size - 1)


def _zero_tail(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.seek(20_000)
        file.write(bytes(segment.stat().st_size - 20_000))


def _zero(segment: Path) -> None:
    segment.write_bytes(bytes(segment.stat().st_size))


def _empty(segment: Path) -> None:
    os.truncate(segment, 0)


@pytest.mark.fault(
    "files",
    "the newest segment cut, zeroed, emptied or deleted after a SIGKILL",
    "`corruption` names the file, `verify` exits with 1; `repair` goes on with the rest",
)
def test_a_newest_segment_that_was_harmed(tmp_path: Path, tried: Tried) -> None:
    data = tmp_path / "data"
    _killed(data)
    newest = _newest(data)
    content = newest.read_bytes()
    left = {}
    for harm in (_cut, _cut_unused_part, _zero_tail, _zero, _empty, Path.unlink):
        harm(newest)
        told = _refused(data)
        assert told.startswith(f"journal/{newest.name}")
        if harm in (_cut, _cut_unused_part, _zero_tail, Path.unlink):
            assert "bytes" in told
            assert "fasti storage repair" in told
            left[harm.__name__] = _left_after_repair(data)
        newest.write_bytes(content)
    assert 0 < left["_cut"] < _SENT
    assert left["_zero_tail"] == left["_cut"]
    assert left["_cut_unused_part"] == _SENT
    assert left["unlink"] == 0
    # And nothing is wrong with it as it was.
    assert _left_after_repair(data) == _SENT
    tried.times = 6


@pytest.mark.fault(
    "files",
    "the last frame zeroed after an orderly stop",
    "refused; as it was it opens with everything",
)
def test_the_last_frame_of_a_directory_that_was_closed(tmp_path: Path, tried: Tried) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, settings=_SETTINGS) as broker, fasti.connect(broker.address) as client:
        client.create_topic("t")
        for _ in range(3):
            client.producer("t").send(b"x" * 1000, delay="1h").result()
    newest = _newest(data)
    content = newest.read_bytes()
    found = [place for place, _ in _frames(content)]
    newest.write_bytes(content[: found[-1]].ljust(len(content), b"\0"))
    assert "the end is missing: 1 frames" in _refused(data)
    newest.write_bytes(content)
    with BrokerProcess(data, settings=_SETTINGS) as broker, fasti.connect(broker.address) as client:
        assert client.messages("t").count()["scheduled"] == 3


def _frames(content: bytes) -> Iterator[tuple[int, Header]]:
    """Places and headers of frames that are no marks."""
    for offset in range(64, len(content), ALIGNMENT):
        header = decode_header(memoryview(content), offset)
        if header is not None and not header.flags & MARK:
            yield offset, header


@pytest.mark.fault(
    "files",
    "a block of payloads cut, emptied or deleted",
    "told at the start by its size, before a reader comes to it",
)
def test_a_block_that_became_shorter(tmp_path: Path, tried: Tried) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, settings=_SETTINGS) as broker, fasti.connect(broker.address) as client:
        client.create_topic("t")
        client.producer("t").send(b"x" * 1000, delay="1h").result()
    (block,) = (data / "blocks").glob("*.payloads")
    content = block.read_bytes()
    for harmed in (content[:-1], b""):
        block.write_bytes(harmed)
        assert _refused(data).startswith(f"blocks/{block.name}: the file was cut")
    block.unlink()
    assert _refused(data).startswith(f"blocks/{block.name} is missing")
    block.write_bytes(content)
    with BrokerProcess(data, settings=_SETTINGS) as broker, fasti.connect(broker.address) as client:
        assert client.messages("t").count()["scheduled"] == 1
    tried.times = 3


@pytest.mark.fault(
    "files",
    "segments of another directory put in place of its own",
    "`corruption`: they belong to another incarnation",
)
def test_segments_of_another_directory(tmp_path: Path) -> None:
    for name in ("one", "other"):
        _killed(tmp_path / name, 3)
    for segment in (tmp_path / "one" / "journal").iterdir():
        segment.unlink()
    for segment in (tmp_path / "other" / "journal").iterdir():
        segment.rename(tmp_path / "one" / "journal" / segment.name)
    assert "incarnation" in _refused(tmp_path / "one")
