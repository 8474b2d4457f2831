"""Copies of data directories: what an opening says of them, and what is in them."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import Corruption
from fasti.storage.files import LocalFiles
from fasti.storage.files.copies import OPEN_NAME
from fasti.storage.tools.inspect import inspect
from tests.integration.serve_rig import SMALL
from tests.integration.test_backup import Traffic, numbers

COPY = "looks like a copy of"


def warnings_of(directory: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an opening says about where the directory comes from."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fasti.connect(f"embedded:{directory}").close()
    return [record.getMessage() for record in caplog.records if COPY in record.getMessage()]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a broker that was killed."""
    with BrokerProcess(tmp_path / "data", settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            client.producer("t").send(b"x", delay="1h").result()
        broker.kill()
    return tmp_path / "data"


@pytest.mark.one_shard
def test_a_directory_that_was_closed_is_a_copy_only_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fasti.connect(f"embedded:{tmp_path / 'data'}") as client:
        client.create_topic("t")
        assert (tmp_path / "data" / OPEN_NAME).exists()
    assert not (tmp_path / "data" / OPEN_NAME).exists()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    (told,) = warnings_of(tmp_path / "copy", caplog)
    assert "--clone" in told
    assert not warnings_of(tmp_path / "copy", caplog), "it lives there now"
    os.rename(tmp_path / "data", tmp_path / "moved")
    assert not warnings_of(tmp_path / "moved", caplog)


@pytest.mark.one_shard
def test_nothing_is_said_of_one_after_a_crash_also_if_it_was_moved(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (killed / OPEN_NAME).exists()
    assert inspect(LocalFiles(killed)).ok
    moved = killed.with_name("moved")
    os.rename(killed, moved)
    assert not warnings_of(moved, caplog)


@pytest.mark.one_shard
def test_a_copy_of_one_that_was_open_is_told_once(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = killed.with_name("copy")
    shutil.copytree(killed, copy)
    report = inspect(LocalFiles(copy))
    assert report.ok
    assert [finding.kind for finding in report.findings if COPY in finding.message] == ["copy"]
    (told,) = warnings_of(copy, caplog)
    assert str(killed) in told
    assert "fasti backup" in told
    assert not warnings_of(copy, caplog), "it is a directory of its own now"
    assert not warnings_of(killed, caplog)
    with fasti.connect(f"embedded:{copy}") as client:
        assert client.messages("t").count()["scheduled"] == 1


def kept(directory: Path) -> dict[Path, bytes]:
    """Everything that an opening must not touch before all was found good."""
    names = [*directory.rglob("blocks/*"), *directory.rglob("*.segment")]
    return {path: path.read_bytes() for path in names}


@pytest.mark.one_shard
@pytest.mark.parametrize("missing", ["payloads", "segment", "rows"])
def test_a_copy_that_is_not_whole_says_what_it_is(killed: Path, missing: str) -> None:
    with fasti.connect(f"embedded:{killed}") as client:
        client.checkpoint()
        client.producer("t").send(b"y", delay="1h").result()
        copy = killed.with_name("copy")
        copy_file_by_file(killed, copy)
    for path in sorted(copy.rglob(f"*.{missing}")):
        path.unlink()
    before = kept(copy)
    with pytest.raises(Corruption, match=COPY) as refused:
        fasti.connect(f"embedded:{copy}").health()
    assert "fasti backup" in refused.value.message
    assert kept(copy) == before
    # What is damaged for another reason is not blamed on a copy.
    for path in sorted(killed.rglob(f"*.{missing}")):
        path.unlink()
    with pytest.raises(Corruption) as plain:
        fasti.connect(f"embedded:{killed}").health()
    assert COPY not in plain.value.message


def copy_file_by_file(source: Path, target: Path) -> None:
    """As `cp -r` does it; what is deleted meanwhile is left out."""
    for folder, _, names in os.walk(source):
        below = target / Path(folder).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            try:
                shutil.copy(Path(folder) / name, below / name)
            except FileNotFoundError:
                continue


@pytest.mark.one_shard
def test_copies_of_a_broker_under_traffic_open_as_of_a_moment_or_say_why_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SMALL, "checkpoint_size": "64KiB", "feed_size": "0"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with fasti.connect(broker.address) as client:
            for topic in ("left", "right"):
                client.create_topic(topic)
            client.create_topic("rows", kind="log")
        traffic = Traffic(broker.address)
        traffic.start()
        try:
            assert traffic.some.wait(60)
            for number in range(5):
                copy_file_by_file(tmp_path / "data", tmp_path / f"copy-{number}")
        finally:
            traffic.stopping.set()
            traffic.join()
    for number in range(5):
        copy = tmp_path / f"copy-{number}"
        try:
            told = warnings_of(copy, caplog)
        except Corruption as error:
            assert COPY in error.message  # noqa: PT017
            continue
        assert len(told) == 1
        with fasti.connect(f"embedded:{copy}") as client:
            left = numbers(client, "left")
            assert left == numbers(client, "right")
            rows = sorted(int(m.payload) for m in client.reader("rows", start="earliest"))
            assert left == rows
            # A moment while it was copied, or before: nothing out of the middle is missing.
            assert left == sorted(traffic.acknowledged)[: len(left)]
