"""The machine's clock is set while brokers run: back, ahead for a moment, ahead for good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import ClockBehind
from tests.faults.conftest import Tried
from tests.faults.shim import MachineFaults
from tests.integration.serve_rig import SMALL, ask

HOUR_S = 3600.0
MONTH_S = 30 * 86_400.0


@contextmanager
def running(
    data: Path, machine: MachineFaults, http: str = "off", **settings: str
) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        data, env=machine.environment, http=http, settings={**SMALL, **settings}
    ) as broker:
        yield broker


def clock_metrics(client: Client) -> dict[str, float]:
    return {
        sample.labels.get("state", sample.name): sample.value
        for family in text_string_to_metric_families(client.metrics())
        for sample in family.samples
        if sample.name.startswith("fasti_clock_")
    }


def deliver(client: Client, topic: str, count: int, delay: str) -> None:
    """Sends messages with a delay, and takes them: each not before it is due by the broker's clock."""
    producer = client.producer(topic)
    with client.consumer(topic) as consumer:
        for number in range(count):
            producer.send(b"%d" % number, delay=delay)
        while count:
            taken = consumer.take(count, timeout="20s")
            assert taken
            now = client.clock_info().now
            for message in taken:
                # By the client's estimate, and by the broker's clock itself.
                assert message.started_us >= message.due_us
                assert now >= message.due
                message.ack()
            count -= len(taken)


@pytest.mark.fault(
    "clock",
    "set back by an hour while it runs, and over a restart",
    "delivery goes on, nothing early by the broker's clock",
)
def test_set_back_by_an_hour(machine: MachineFaults, tmp_path: Path, tried: Tried) -> None:
    with running(tmp_path / "data", machine) as broker, fasti.connect(broker.address) as client:
        client.create_topic("t", lookahead="200ms")
        deliver(client, "t", 5, "100ms")
        before = client.clock_info()
        assert before.state == "following"
        machine.set_clock(-HOUR_S)
        deliver(client, "t", 5, "300ms")
        after = client.clock_info()
        assert after.state == "slowed"
        assert after.now > before.now
        assert after.offset_s == pytest.approx(-HOUR_S, abs=5)
        assert "the wall clock was set back" in broker.log()
        broker.kill()
        broker.start()
        deliver(client, "t", 5, "300ms")
        again = client.clock_info()
        assert (again.state, again.now > before.now) == ("slowed", True)
        assert clock_metrics(client)["slowed"] == 1
        # The wall is mended: both go together again.
        machine.set_clock(0)
        assert client.clock_info().state == "following"
        deliver(client, "t", 5, "100ms")
    tried.times = 2


@pytest.mark.fault(
    "clock",
    "30 days ahead for some seconds, with traffic",
    "no event takes the time, nothing expires or is trimmed, delivery goes on",
)
def test_a_glitch_of_a_month(machine: MachineFaults, tmp_path: Path, tried: Tried) -> None:
    with (
        running(tmp_path / "data", machine, http="127.0.0.1:0") as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        client.create_topic("rows", kind="log", segment_age="1d", segment_bytes=4096)
        client.create_topic("entries", kind="kv")
        client.kv("entries").put("a", b"1", ttl="10d")
        rows = client.producer("rows")
        for number in range(20):
            rows.send(bytes(1000) + bytes([number])).result()
        client.producer("t").send(b"in a week", delay="7d").result()
        before = datetime.now(UTC)
        for _ in range(2):
            machine.set_clock(MONTH_S)
            deliver(client, "t", 3, "100ms")
            rows.send(b"meanwhile").result()
            client.kv("entries").put("b", b"2", ttl="1h")
            info = client.clock_info()
            assert (info.state, round(info.offset_s / 86_400)) == ("doubting", 30)
            assert clock_metrics(client)["doubting"] == 1
            health = ask(broker, "/readyz")
            assert (health.status, health.json()["reason"]) == (200, "clock_leap")
            machine.set_clock(0)
            deliver(client, "t", 3, "100ms")
        info = client.clock_info()
        assert info.state == "following"
        assert timedelta() <= info.now - before < timedelta(minutes=1)
        assert "reason" not in ask(broker, "/readyz").json()
        client.checkpoint()
        for key in ("a", "b"):
            assert client.kv("entries").get(key) is not None
        assert [part.rows for part in client.log("rows").describe()] == [22]
        assert client.topic("t").counts["scheduled"] == 1
        log = broker.log()
        assert log.count("it is not believed until it has lasted") == 2
        assert log.count("goes with the wall clock again") == 2
        # The glitch comes while no broker runs: on the same boot it is told from a long rest.
        broker.kill()
        machine.set_clock(MONTH_S)
        broker.start()
        deliver(client, "t", 3, "100ms")
        assert client.clock_info().state == "doubting"
        machine.set_clock(0)
        deliver(client, "t", 3, "100ms")
        assert client.clock_info().state == "following"
        assert client.kv("entries").get("a") is not None
    tried.times = 3


@pytest.mark.fault(
    "clock", "30 days ahead, and it lasts", "believed after the set time; what is due comes"
)
def test_a_leap_that_lasts(machine: MachineFaults, tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", machine, clock_leap_lasts="1500ms") as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        client.producer("t").send(b"in a week", delay="7d").result()
        with client.consumer("t") as consumer:
            machine.set_clock(MONTH_S)
            begin = time.monotonic()
            assert client.clock_info().state == "doubting"
            (message,) = consumer.take(timeout="20s")
            assert time.monotonic() - begin >= 1.5
            assert message.started_us >= message.due_us
        assert client.clock_info().state == "following"
        assert "is believed: it has lasted" in broker.log()


@pytest.mark.fault(
    "clock", "30 days ahead, accepted by mistake", "start refused; reset-clock loses nothing"
)
def test_a_leap_that_is_accepted_and_the_way_back(machine: MachineFaults, tmp_path: Path) -> None:
    from fasti.storage.files import LocalFiles
    from fasti.storage.tools.clock_reset import reset_clock

    data = tmp_path / "data"
    with running(data, machine) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            client.create_topic("entries", kind="kv")
            client.producer("t").send(b"in two months", delay="60d").result()
            client.kv("entries").put("a", b"1", ttl="60d")
            machine.set_clock(MONTH_S)
            assert client.accept_clock()
            assert not client.accept_clock()
            assert "control: accept_clock" in broker.log()
            client.producer("t").send(b"an hour later", delay="1h").result()
        broker.kill()
        machine.set_clock(0)
        with pytest.raises(ClockBehind):
            broker.start()
        done = reset_clock(LocalFiles(data), time.time_ns() // 1000, dry_run=False)
        assert done.needed
        broker.start()
        with fasti.connect(broker.address) as client:
            assert client.clock_info().state == "following"
            assert client.topic("t").counts["scheduled"] == 2
            assert client.kv("entries").get("a") is not None
            deliver(client, "t", 3, "100ms")


@pytest.mark.fault(
    "clock",
    "set back and ahead by seconds, time and again, under messages sent ahead",
    "never early by the broker's clock",
)
def test_never_early_around_steps(machine: MachineFaults, tmp_path: Path, tried: Tried) -> None:
    """The consumer holds messages that came ahead of their time, by its estimate of the clock."""
    off = (-2.0, 1.0, -0.05, -30.0, 10.0, 0.0)
    with running(tmp_path / "data", machine) as broker, fasti.connect(broker.address) as client:
        client.create_topic("t", lookahead="500ms")
        producer = client.producer("t")
        with client.consumer("t", prefetch=200) as consumer:
            for step, seconds in enumerate(off):
                for number in range(20):
                    producer.send(b"x", delay=f"{100 + 15 * number}ms")
                taken = consumer.take(5, timeout="20s")
                # Fifteen more are with the consumer already, or on their way.
                machine.set_clock(seconds)
                while len(taken) < 20:
                    taken += consumer.take(20 - len(taken), timeout="20s")
                    now_us = round(client.clock_info().now.timestamp() * 1e6)
                    assert all(each.started_us >= each.due_us for each in taken)
                    assert all(now_us >= each.due_us for each in taken), step
                for message in taken:
                    message.ack()
    tried.times = len(off)
