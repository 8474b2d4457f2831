"""Backups of brokers that run and of directories at rest, and what a restore makes of them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.errors import (
    AlreadyExists,
    ClockBehind,
    Corruption,
    FastiError,
    Gone,
    InvalidArgument,
    NewerFormat,
    Overloaded,
    Unavailable,
)
from fasti.storage.files import LocalFiles
from fasti.storage.tools.backup import back_up, directory_source
from fasti.storage.tools.clock_reset import reset_clock
from fasti.storage.tools.inspect import inspect
from fasti.storage.tools.restore import restore
from fasti.testing.virtual import VirtualBroker
from tests.integration.serve_rig import SMALL


def fill(client: fasti.Client) -> None:
    """Something of every kind, some of it in blocks and some in the journal."""
    client.create_topic("emails")
    client.create_topic("jobs", kind="priority")
    client.create_topic("events", kind="log", partitions=2)
    client.create_topic("profiles", kind="kv")
    client.create_topic("reports", kind="cron")
    for part in range(2):
        emails = client.producer("emails")
        outcomes = emails.send_batch([b"%d" % n for n in range(100)], delay="1h")
        assert outcomes.all_ok
        emails.send(b"keyed", key=f"user-{part}", delay="2h").result()
        client.producer("jobs").send(b"job", priority=part, delay="1h").result()
        for n in range(20):
            client.producer("events").send(b"row-%d" % n, key=f"k{n}")
        client.producer("events").flush()
        client.kv("profiles").put("ann", b"v%d" % part)
        client.schedules("reports").put(
            f"daily-{part}", cron="0 9 * * *", target="emails", payload=b"report"
        )
        if part == 0:
            client.checkpoint()
    client.messages("emails").cancel(key="user-0")
    group = client.consumer("events", group="g", name="w", timeout="5s")
    for _ in range(5):
        next(iter(group)).ack()
    group.close()


def content(client: fasti.Client) -> dict[str, Any]:
    """What can be seen of it."""
    emails = client.messages("emails").list(limit=10_000, payload=True).sort_by("id").to_pydict()
    rows = [(m.offset, m.partition, m.payload) for m in client.reader("events", start="earliest")]
    profile = client.kv("profiles").get("ann")
    return {
        "emails": (emails["id"], emails["due_us"], emails["payload"], emails["key"]),
        "jobs": client.messages("jobs").count(),
        "events": sorted(rows),
        "groups": [g.to_dict()["partitions"] for g in client.groups("events").list()],
        "profile": (profile.value, profile.version),
        "schedules": sorted(s.name for s in client.schedules("reports").list()),
    }


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[fasti.Client]:
    with fasti.connect(f"embedded:{tmp_path / 'data'}") as client:
        fill(client)
        yield client


@pytest.mark.one_shard
def test_a_backup_has_all_that_was_acknowledged_and_nothing_later(
    filled: fasti.Client, tmp_path: Path
) -> None:
    before = content(filled)
    position = filled.feed().last
    seen: list[tuple[int, int]] = []
    done = filled.backup(tmp_path / "backup", progress=lambda *given: seen.append(given))
    assert done.position >= position.frame
    assert seen
    assert seen[-1][0] == done.copied_bytes
    filled.producer("emails").send(b"later", delay="1h").result()
    restored = restore(tmp_path / "backup", tmp_path / "again")
    assert restored.topics == len(filled.topics())
    assert inspect(LocalFiles(tmp_path / "again")).ok
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert content(client) == before
        # It is another life: what was read of the first one means nothing here.
        with pytest.raises(Gone):
            list(client.changes(start=position))
        client.producer("emails").send(b"new", delay="1h").result()
    assert not (tmp_path / "again" / "RESTORING").exists()


@pytest.mark.one_shard
def test_a_second_backup_brings_only_what_is_new(filled: fasti.Client, tmp_path: Path) -> None:
    filled.producer("emails").send_batch([bytes(1000)] * 2000, delay="1h")
    filled.checkpoint()
    first = filled.backup(tmp_path / "backup")
    filled.producer("emails").send(b"more", delay="1h").result()
    again = filled.backup(tmp_path / "backup")
    assert again.position > first.position
    assert again.copied_bytes < 100_000 < first.copied_bytes
    before = content(filled)
    filled.messages("emails").cancel(id=before["emails"][0])
    filled.checkpoint()
    filled.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert client.messages("emails").count()["scheduled"] == 0
    # What the manifest names no more is gone.
    assert inspect(LocalFiles(tmp_path / "backup")).findings == []


def test_files_stay_while_a_backup_is_under_way(tmp_path: Path) -> None:
    transport = EmbeddedTransport(tmp_path / "data")
    shard = transport.service.placement.catalogue
    with fasti.Client(transport) as client:
        fill(client)
        expected = content(client)
        seen = 0

        def disturb(done: int, total: int) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                ids = client.messages("emails").list(limit=10_000).column("id").to_pylist()
                client.messages("emails").cancel(id=ids)
                client.checkpoint()
                client.checkpoint()

        client.backup(tmp_path / "backup", progress=disturb)
        assert len(shard.holds) == 0
        client.checkpoint()
        named = shard.store.manifest.names
        assert set(shard.store.blocks.list()) == named
        restore(tmp_path / "backup", tmp_path / "again")
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert content(client) == expected


def test_a_hold_that_nobody_uses_ends(tmp_path: Path) -> None:
    transport = EmbeddedTransport(tmp_path / "data")
    holds = transport.service.placement.catalogue.holds
    with fasti.Client(transport) as client:
        told, _ = transport.call("begin_backup")
        assert len(holds) == 1
        holds._monotonic = lambda: 1e12
        assert len(holds) == 0
        ticket = {"call": "backup", "backup": told["backup"], "names": ["journal"], "rate": 0}
        with pytest.raises(Gone, match="begin the backup again"):
            list(transport.read(ticket))
        client.health()


class Stopped(Exception):
    """The process that took the backup is gone."""


def stop_after(count: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        nonlocal count
        count -= 1
        if count < 0:
            raise Stopped

    return progress


def test_a_backup_that_was_interrupted_is_refused_and_then_completed(
    filled: fasti.Client, tmp_path: Path
) -> None:
    """Anywhere between its pieces."""
    before = content(filled)
    for pieces in range(1, 1000):
        try:
            filled.backup(tmp_path / "backup", progress=stop_after(pieces))
            break
        except Stopped:
            with pytest.raises(Corruption, match="this backup is incomplete"):
                restore(tmp_path / "backup", tmp_path / "again")
            shutil.rmtree(tmp_path / "again", ignore_errors=True)
    assert pieces >= 3
    restore(tmp_path / "backup", tmp_path / "again")
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert content(client) == before


def test_an_older_backup_stays_good_until_the_next_is_whole(
    filled: fasti.Client, tmp_path: Path
) -> None:
    filled.backup(tmp_path / "backup")
    before = content(filled)
    filled.producer("emails").send(b"more", delay="1h").result()
    filled.checkpoint()
    with pytest.raises(Stopped):
        filled.backup(tmp_path / "backup", progress=stop_after(1))
    restore(tmp_path / "backup", tmp_path / "again")
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert content(client) == before


def test_what_a_backup_and_a_restore_refuse(filled: fasti.Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="not empty and is not a backup"):
        filled.backup(other)
    filled.backup(tmp_path / "backup")
    with pytest.raises(AlreadyExists, match="is not empty"):
        restore(tmp_path / "backup", other)
    with fasti.connect(f"embedded:{tmp_path / 'another'}") as client:
        with pytest.raises(InvalidArgument, match="has a backup of shard"):
            client.backup(tmp_path / "backup")
    with pytest.raises(Corruption, match="`fasti restore` makes a data directory"):
        fasti.connect(f"embedded:{tmp_path / 'backup'}").health()
    assert (other / "notes.txt").read_text() == "mine"
    described = next((tmp_path / "backup").rglob("BACKUP"))
    document = json.loads(described.read_text())
    described.write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(NewerFormat, match=r"format 99.*up to 1"):
        restore(tmp_path / "backup", tmp_path / "again")


@pytest.mark.parametrize(
    "version",
    ["files.journal_segment.SEGMENT_FORMAT_VERSION", "manifest.MANIFEST_DATA_VERSION"],
)
def test_a_backup_of_another_version_is_refused_before_anything_is_written(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(f"fasti.storage.{version}", 7)
        with fasti.connect(f"embedded:{tmp_path / 'data'}") as client:
            fill(client)
            client.backup(tmp_path / "backup")
    with pytest.raises(NewerFormat, match=r"format 7, which another version.*up to 1"):
        restore(tmp_path / "backup", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_damaged_backup_is_told(filled: fasti.Client, tmp_path: Path) -> None:
    filled.backup(tmp_path / "backup")
    names = [f for f in (tmp_path / "backup").rglob("*") if f.is_file()]
    names = [file for file in names if file.name not in ("BACKUP", "SHARDS")]
    for path in names:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(FastiError) as refused:
            restore(tmp_path / "backup", tmp_path / "again")
        assert refused.value.code == "corruption"
        with pytest.raises(Corruption, match="a restore into this directory was interrupted"):
            fasti.connect(f"embedded:{tmp_path / 'again'}").health()
        path.write_bytes(data)
    # The next one begins anew.
    restore(tmp_path / "backup", tmp_path / "again")
    fasti.connect(f"embedded:{tmp_path / 'again'}").close()


@pytest.mark.one_shard
def test_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with fasti.aio.connect(f"embedded:{tmp_path / 'data'}") as client:
            await client.create_topic("t")
            done = await client.backup(tmp_path / "backup")
            assert done.files == 2
            with pytest.raises(InvalidArgument, match="rate"):
                await client.backup(tmp_path / "backup", rate=-1)

    asyncio.run(run())
    assert restore(tmp_path / "backup", tmp_path / "again").topics == 1


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_a_directory_at_rest_by_the_command_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fasti.connect(f"embedded:{data}") as client:
        fill(client)
        before = content(client)
        code, _, problem = cli("backup", tmp_path / "backup", "--data", data)
        assert code == ERROR_EXITS["locked"], problem
    files = {
        path: path.read_bytes()
        for path in data.rglob("*")
        if path.name != "LOCK" and path.is_file()
    }
    code, text, problem = cli("backup", tmp_path / "backup", "--data", data, "--json")
    assert code == 0, problem
    assert json.loads(text)["copied_bytes"] > 0
    assert {path: path.read_bytes() for path in files} == files
    code, text, _ = cli("restore", tmp_path / "backup", tmp_path / "again", "--json")
    assert code == 0
    assert json.loads(text)["new_shard"] != json.loads(text)["shard"]
    code, _, problem = cli("restore", tmp_path / "backup", tmp_path / "again")
    assert code == ERROR_EXITS["already_exists"]
    assert "is not empty" in problem
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as client:
        assert content(client) == before
    code, text, _ = cli("backup", tmp_path / "backup", "--data", data)
    assert code == 0
    assert "checksums verified" in text


class Traffic(threading.Thread):
    """Sends pairs in transactions, one to each topic, until it is told to stop."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.acknowledged: list[int] = []
        self.stopping = threading.Event()
        self.some = threading.Event()

    def run(self) -> None:
        number = 0
        with fasti.connect(self.address) as client:
            while not self.stopping.is_set():
                number += 1
                try:
                    with client.transaction() as tx:
                        for topic in ("left", "right"):
                            tx.send(topic, b"%d" % number, delay="1h")
                        tx.send("rows", b"%d" % number)
                except FastiError:
                    self.stopping.wait(0.05)
                    continue
                self.acknowledged.append(number)
                if len(self.acknowledged) > 20:
                    self.some.set()


def numbers(client: fasti.Client, topic: str) -> list[int]:
    listed = client.messages(topic).list(limit=100_000, payload=True).column("payload").to_pylist()
    return sorted(int(each) for each in listed)


@pytest.mark.one_shard
def test_a_broker_under_traffic_killed_with_its_backups(tmp_path: Path) -> None:
    settings = {**SMALL, "checkpoint_size": "256KiB"}
    backup, again = tmp_path / "backup", tmp_path / "again"
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with fasti.connect(broker.address) as client:
            for topic in ("left", "right"):
                client.create_topic(topic)
            client.create_topic("rows", kind="log")
            client.create_topic("filling")
            client.producer("filling").send_batch([bytes(50_000)] * 100, delay="1h")
            client.checkpoint()
        traffic = Traffic(broker.address)
        traffic.start()
        try:
            assert traffic.some.wait(60)
            command = [sys.executable, "-m", "fasti", "backup", str(backup)]
            command += ["--address", broker.address, "--rate", "1MiB"]
            # The client is killed in the middle.
            process = subprocess.Popen(command)
            while not list(backup.glob("blocks/*")):
                assert process.poll() is None
                traffic.stopping.wait(0.01)
            process.kill()
            process.wait()
            with pytest.raises(Corruption, match="this backup is incomplete"):
                restore(backup, again)
            # The broker is.
            killed = threading.Event()

            def kill(done: int, total: int) -> None:
                if not killed.is_set():
                    killed.set()
                    broker.kill()

            with fasti.connect(broker.address) as client:
                with pytest.raises(Unavailable):
                    client.backup(backup, progress=kill, rate=1 << 20)
            with pytest.raises(Corruption, match="this backup is incomplete"):
                restore(backup, again)
            broker.start()
            # And the third is left alone, while the traffic goes on.
            with fasti.connect(broker.address) as client:
                acknowledged = list(traffic.acknowledged)
                done = client.backup(backup)
        finally:
            traffic.stopping.set()
            traffic.join()
    restored = restore(backup, again)
    assert restored.position == done.position
    assert inspect(LocalFiles(again)).ok
    with fasti.connect(f"embedded:{again}") as client:
        left = numbers(client, "left")
        rows = sorted(int(m.payload) for m in client.reader("rows", start="earliest"))
        assert left == numbers(client, "right") == rows, "transactions are whole"
        assert set(acknowledged) <= set(left)


@pytest.mark.one_shard
def test_a_source_that_changes_under_a_backup_at_rest(tmp_path: Path) -> None:
    """A backup holds the directory's lock, so that nobody opens it meanwhile."""
    data = tmp_path / "data"
    with fasti.connect(f"embedded:{data}") as client:
        client.create_topic("t")
    with directory_source(data) as source:
        with pytest.raises(FastiError) as refused:
            fasti.connect(f"embedded:{data}").health()
        assert refused.value.code == "locked"
        back_up(source, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")


def test_in_virtual_time(tmp_path: Path) -> None:
    """A virtual broker's backup may be from the future: for real use its time is set back."""
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        client.create_topic("c", kind="cron")
        client.schedules("c").put("hourly", cron="0 * * * *", target="t", misfire="once")
        client.producer("t").send(b"in three days", delay="3d").result()
        assert client.backup(tmp_path / "backup").files > 1
    restore(tmp_path / "backup", tmp_path / "again")
    with pytest.raises(ClockBehind):
        fasti.connect(f"embedded:{tmp_path / 'again'}")
    reset_clock(LocalFiles(tmp_path / "again"), time.time_ns() // 1000, dry_run=False)
    with fasti.connect(f"embedded:{tmp_path / 'again'}") as restored:
        assert restored.schedules("c").get("hourly").name == "hourly"
        assert (
            restored.messages("t").list(payload=True)["payload"].to_pylist().count(b"in three days")
            == 1
        )


def test_a_full_disk_and_a_recovery_end_backups(tmp_path: Path) -> None:
    transport = EmbeddedTransport(tmp_path / "data")
    shard = transport.service.placement.catalogue
    with fasti.Client(transport) as client:
        client.create_topic("t")
        told, _ = transport.call("begin_backup")
        shard.store.journal._failure = "a test"
        client.producer("t").send(b"x").result()
        assert shard.recoveries == 1
        ticket = {"call": "backup", "backup": told["backup"], "names": ["journal"], "rate": 0}
        with pytest.raises(Gone, match="begin the backup again"):
            list(transport.read(ticket))
        for _ in range(4):
            transport.call("begin_backup")
        with pytest.raises(Overloaded, match="there are 4 backups under way"):
            transport.call("begin_backup")
        with pytest.raises(InvalidArgument, match="no file"):
            list(transport.read({**ticket, "backup": 2, "names": ["../LOCK"]}))
