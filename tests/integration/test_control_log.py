"""Control calls leave a line in the broker's log: what, by whom, and what came out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.caller import EMBEDDED
from fasti.broker.calls import control
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.launch import BrokerProcess
from fasti.errors import NotFound
from tests.integration.serve_rig import SMALL


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings={**SMALL, "log_format": "json"}) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as connected:
        yield connected


def lines(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Those of control calls, each without what is the same in all of them."""
    found = []
    for line in broker.log().splitlines():
        told = json.loads(line)
        if told["logger"] == "fasti.broker.control":
            assert told.pop("peer").startswith("127.0.0.1:")
            assert told.pop("by") == "-"
            told["action"] = told.pop("message").removeprefix("control: ")
            found.append({n: v for n, v in told.items() if n not in ("time", "level", "logger")})
    return found


def fail(client: fasti.Client, topic: str, count: int) -> None:
    with client.consumer(topic, name="worker") as consumer:
        for number, message in enumerate(consumer, 1):
            message.reject("no such address")
            if number == count:
                break


@pytest.mark.one_shard
def test_what_an_operator_does_is_in_the_log(broker: BrokerProcess, client: fasti.Client) -> None:
    client.create_topic("mail", max_attempts=3)
    # Nothing new: workers do it whenever they start.
    client.create_topic("mail", max_attempts=3)
    client.change_topic("mail", max_attempts=5)
    client.producer("mail").send_batch([b"x"] * 3)
    fail(client, "mail", 3)
    messages = client.messages("mail")
    dead = messages.dead().column("id").to_pylist()
    messages.redrive(dead[:1], delay="1h")
    messages.purge(dead[1:])
    client.producer("mail").send_batch([b"y"] * 5, key=[f"cart-{n}" for n in range(5)], delay="1h")
    messages.cancel_where(key_prefix="cart-", dry_run=True)
    messages.cancel_where(key_prefix="cart-")
    # Nothing is left for these.
    messages.cancel_where(key_prefix="cart-")
    messages.redrive(reason="no such address")
    client.pause_topic("mail")
    client.pause_topic("mail")
    client.resume_topic("mail")
    client.delete_topic("mail")
    with pytest.raises(NotFound):
        client.delete_topic("mail")
    found = lines(broker)
    assert [each["action"] for each in found] == [
        *("create_topic", "change_topic", "redrive", "purge", "cancel_where"),
        *("pause_topic", "resume_topic", "delete_topic"),
    ]
    assert {each["topic"] for each in found} == {"mail"}
    by_action = {each["action"]: each for each in found}
    assert json.loads(by_action["change_topic"]["settings"]) == {"max_attempts": 5}
    assert by_action["redrive"]["outcome"] == "ok:1"
    assert by_action["purge"]["outcome"] == "ok:2"
    assert by_action["cancel_where"]["outcome"] == "ok:5"
    assert by_action["cancel_where"]["key_prefix"] == "cart-"
    assert by_action["delete_topic"]["outcome"] == "ok"


def test_groups_leases_and_schedules(broker: BrokerProcess, client: fasti.Client) -> None:
    client.create_topic("events", kind="log")
    client.groups("events").create("readers")
    client.groups("events").reset("readers", "latest")
    client.create_topic("work")
    client.producer("work").send(b"x").result()
    with client.consumer("work", name="stuck") as consumer:
        next(iter(consumer))
        client.release_consumer("stuck", topic="work")
    found = {each["action"]: each for each in lines(broker)}
    assert {"create_group", "reset_group", "release_leases"} <= set(found)
    assert found["reset_group"]["group"] == "readers"
    assert (found["release_leases"]["topic"], found["release_leases"]["consumer"]) == (
        "work",
        "stuck",
    )
    assert found["release_leases"]["outcome"] == "ok:1"


def test_daily_work_leaves_no_line(broker: BrokerProcess, client: fasti.Client) -> None:
    client.create_topic("mail")
    client.producer("mail").send_batch([b"x"] * 10, key=[f"k{n}" for n in range(10)])
    client.messages("mail").cancel(key="k1")
    client.messages("mail").move(key="k2", delay="1h")
    with client.consumer("mail", name="worker") as consumer:
        for _, message in zip(range(3), consumer, strict=False):
            message.ack()
    client.topics()
    client.metrics()
    assert [each["action"] for each in lines(broker)] == ["create_topic"]


def test_an_embedded_broker_logs_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("mail")
    [line] = [each for each in caplog.records if each.name == "fasti.broker.control"]
    told = line.fields  # type: ignore[attr-defined]
    assert (told["topic"], told["peer"], told["outcome"]) == ("mail", "embedded", "created:true")


def test_what_is_daily_is_an_action() -> None:
    """An action that is renamed must not become a control call by chance."""
    assert set(ACTIONS) >= control._DAILY


def test_nobody_writes_a_second_line_or_a_long_one(caplog: pytest.LogCaptureFixture) -> None:
    header = {"topic": "t\ncontrol: delete_topic", "consumer": "x" * 10_000}
    with caplog.at_level(logging.INFO):
        control.log_done("release_leases", EMBEDDED, header, {})
    [line] = caplog.records
    told = line.fields  # type: ignore[attr-defined]
    assert "\n" not in told["topic"]
    assert len(told["consumer"]) < 300
