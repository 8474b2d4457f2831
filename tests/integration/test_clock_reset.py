"""A wrong clock was believed: the way back loses nothing."""

from __future__ import annotations

import json
import random
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fasti
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.main import app
from fasti.client.client import Client
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import ClockBehind
from fasti.model import TopicSettings
from fasti.runtime import SystemRuntime
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from fasti.storage.local_shard import LocalShard
from fasti.storage.tools.clock_reset import reset_clock
from fasti.storage.tools.inspect import inspect
from fasti.testing.disk import Crashed, SimulatedFiles
from fasti.testing.virtual import START, VirtualClock, VirtualTime

SETTINGS = ShardSettings(segment_bytes=1 << 20, memory_bytes=256 << 20, leases_max=1 << 10)
SMALL = ShardSettings(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=64)
START_US = int(START.timestamp() * 1_000_000)
DAY = timedelta(days=1)
DAY_US = 86_400_000_000


def opened(data: Path, machine: VirtualClock) -> tuple[Shard, Client]:
    shard = Shard(FileStorage(LocalFiles(data)), SETTINGS, SystemRuntime(machine))
    service = Service(OneShard(shard), Metrics(), threaded=False)
    clock = VirtualTime(machine, shard.clock)
    return shard, Client(EmbeddedTransport(service=service, clock=clock))


def closed(shard: Shard, client: Client) -> None:
    client.close()
    shard.close()


def fill(client: Client, now: datetime) -> None:
    client.create_topic("mail")
    client.create_topic("rows", kind="log", segment_age="10d")
    client.create_topic("entries", kind="kv")
    client.producer("mail").send(b"tomorrow", at=now + DAY).result()
    client.producer("rows").send(b"row").result()
    client.kv("entries").put("a", b"1", ttl="2d")


def test_a_directory_that_is_a_month_ahead_is_refused_and_set_back(tmp_path: Path) -> None:
    machine = VirtualClock()
    shard, client = opened(tmp_path, machine)
    machine.move(off_us=40 * DAY_US)
    assert client.accept_clock()
    # All that is written now bears a time from the future.
    fill(client, START + 40 * DAY)
    client.producer("mail").send(b"in the past", at=START + DAY).result()
    closed(shard, client)
    machine.move(off_us=-40 * DAY_US)
    with pytest.raises(ClockBehind) as refused:
        opened(tmp_path, machine)
    assert refused.value.code == "clock_behind"

    files = LocalFiles(tmp_path)
    assert reset_clock(files, START_US).needed
    done = reset_clock(files, START_US, dry_run=False)
    assert (done.last_us, done.needed) == (START_US + 40 * DAY_US, True)
    assert not reset_clock(files, START_US, dry_run=False).needed

    shard, client = opened(tmp_path, machine)
    assert shard.clock.now_us() == START_US
    assert client.kv("entries").get("a").value == b"1"
    assert [part.rows for part in client.log("rows").describe()] == [1]
    found = client.messages("mail").list(columns=["due_us", "state"]).sort_by("due_us").to_pylist()
    assert [(row["due_us"] - START_US) // DAY_US for row in found] == [1, 41]
    assert {row["state"] for row in found} == {"scheduled"}
    # What comes now is delivered now, and nothing early.
    client.producer("mail").send(b"now").result()
    with client.consumer("mail") as consumer:
        (message,) = consumer.take(timeout="10s")
        assert message.payload == b"now"
        message.ack()
        machine.move(DAY_US)
        shard.submit([]).result(10)
        (message,) = consumer.take(timeout="10s")
        assert message.payload == b"in the past"
    closed(shard, client)


def test_schedules_go_on_from_the_present(tmp_path: Path) -> None:
    machine = VirtualClock()
    shard, client = opened(tmp_path, machine)
    client.create_topic("mail")
    client.create_topic("times", kind="cron")
    schedules = client.schedules("times")
    schedules.put("hourly", every="5s", target="mail", payload=b"tick")
    machine.move(off_us=40 * DAY_US)
    assert client.accept_clock()
    scheduler = client.transport.service.schedulers[0]
    scheduler.catch_up()
    closed(shard, client)
    machine.move(off_us=-40 * DAY_US)
    taken = reset_clock(LocalFiles(tmp_path), START_US, dry_run=False)
    shard, client = opened(tmp_path, machine)
    client.transport.service.schedulers[0].catch_up()
    machine.move(20_000_000)
    client.transport.service.schedulers[0].catch_up()
    due = client.messages("mail").list(limit=None, columns=["due_us"])["due_us"].to_pylist()
    later = sorted((at_us - START_US) // 1_000_000 for at_us in due)
    # What was emitted ahead of the leap's time is taken back; what had fallen due by it was emitted.
    assert later[:6] == [5, 10, 15, 20, 25, 30]
    assert later[6] > 39 * 86_400
    assert later[-1] == 40 * 86_400
    assert taken.schedules == 1
    closed(shard, client)


def test_a_crash_anywhere_leaves_what_can_be_set_back() -> None:
    """Every change of a file may be the last one before a power cut; then it is run again."""
    disk = SimulatedFiles()
    ahead_us = START_US + 40 * DAY_US
    local = LocalShard(FileStorage(disk), SMALL)
    local.call(co.CreateTopic("t", TopicSettings()), ahead_us, 0)
    local.call(co.Produce("t", Rows.of([b"kept"]), co.When(due_us=START_US)), ahead_us, 0)
    local.close()
    rng, crashes = random.Random(1), 0
    for operation in range(1, 1_000):
        image = disk.crash(rng)
        image.stop_before = image.operations + operation
        try:
            reset_clock(image, START_US, dry_run=False)
        except Crashed:
            crashes += 1
        else:
            break
        image = image.crash(rng)
        reset_clock(image, START_US, dry_run=False)
        assert inspect(image).ok
        after = LocalShard(FileStorage(image), SMALL)
        assert after.engine.state.last_at_us == START_US
        assert len(after.call(co.List("t"), START_US, 0).ids) == 1
        after.close()
    assert crashes > 10


def test_as_a_command(tmp_path: Path) -> None:
    local = LocalShard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
    ahead_us = time.time_ns() // 1000 + 40 * DAY_US
    local.call(co.CreateTopic("t", TopicSettings()), ahead_us, 0)
    run = CliRunner().invoke
    assert run(app, ["storage", "reset-clock", str(tmp_path)]).exit_code != 0
    local.close()
    planned = run(app, ["storage", "reset-clock", str(tmp_path), "--json"])
    assert (planned.exit_code, json.loads(planned.output)["needed"]) == (FOUND_SOMETHING, True)
    done = run(app, ["storage", "reset-clock", str(tmp_path), "--apply"])
    assert done.exit_code == 0
    assert "was set back" in done.output
    shown = run(app, ["clock", "-a", f"embedded:{tmp_path}", "--json"])
    assert (shown.exit_code, json.loads(shown.output)["state"]) == (0, "following")
    assert "it follows the wall clock" in run(app, ["clock", "-a", f"embedded:{tmp_path}"]).output
    accepted = run(app, ["clock", "accept", "-a", f"embedded:{tmp_path}", "--json"])
    assert (accepted.exit_code, json.loads(accepted.output)["changed"]) == (FOUND_SOMETHING, False)
    with fasti.connect(f"embedded:{tmp_path}") as client:
        assert client.clock_info().state == "following"
        assert not client.accept_clock()
        assert [topic.name for topic in client.topics()] == ["t"]
