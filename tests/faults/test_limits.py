"""Limits that callers share: one that takes all it can get leaves room for the others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fasti.broker.launch import BrokerProcess
from fasti.doors.credentials import create
from fasti.doors.without_pandas import hide_pandas_from_arrow
from tests.conformance.protocol_client import Client, ProduceStream, Refused, Session, rows
from tests.faults.conftest import Tried
from tests.integration.serve_rig import SMALL, ask

BOUNDS = {
    "sessions_max": 12,
    "intakes_max": 6,
    "watchers_max": 4,
    "snapshots_max": 6,
    "backups_max": 4,
    "topics_max": 40,
    "inboxes_max": 8,
    "sinks_max": 8,
    "stages_max": 8,
}
LEASES = 200
WAIT_S = 60.0

Grab = Callable[[Client, int], Any]


def _session(client: Client, call: str, **more: Any) -> Session:
    command = {"version": 1, "call": call, **more}
    session = Session(*client.open_exchange(json.dumps(command).encode()))
    if call == "consume":
        session.ask("clock")
    else:
        session.expect(lambda chunk: True)
    return session


def _stage(client: Client, number: int) -> list[Any]:
    place = {"topic": "work", "sink": "s", "batch": number, "partition": 0, "attempt": 0}
    command = json.dumps({"version": 1, "call": "stage", **place}).encode()
    batch = rows(payload=[b"x"])
    stream = ProduceStream(*client.open_put(command, batch.schema))
    stream.write(batch, {"offset": 0})
    return stream.finish()


def _intake(client: Client, number: int) -> ProduceStream:
    batch = rows(payload=[b"x"])
    stream = client.produce(batch.schema, topic="other")
    receipt = stream.ask(batch)
    if "error" in receipt:
        raise Refused(receipt["error"])
    return stream


# In this order: watchers are sessions too, and stages need produce streams.
GRABS: dict[str, Grab] = {
    "watchers_max": lambda c, n: _session(c, "watch", topic="entries"),
    "sessions_max": lambda c, n: _session(
        c, "consume", topic="other", consumer=f"{os.getpid()}-{n}"
    ),
    "stages_max": _stage,
    "intakes_max": _intake,
    "snapshots_max": lambda c, n: c.call("take_snapshot"),
    "backups_max": lambda c, n: c.call("begin_backup"),
    "topics_max": lambda c, n: c.call("create_topic", {"topic": f"t-{os.getpid()}-{n}"}),
    "inboxes_max": lambda c, n: c.call("create_topic", {"topic": f"_inbox.{os.getpid()}-{n}"}),
    "sinks_max": lambda c, n: c.call(
        "publish_batch", {"sink": f"s-{os.getpid()}-{n}", "batch": 0, "stages": []}
    ),
}
# Ended with the connections; the others when they are not used for a while, or never.
CONNECTED = ("watchers_max", "sessions_max", "intakes_max")


def _grab_all(client: Client) -> tuple[dict[str, int], dict[str, dict[str, Any]], list[Any]]:
    """Everything that there is to be had: how much of what, and how more was refused."""
    counts, refused, held = {}, {}, []
    for limit, grab in GRABS.items():
        for number in range(BOUNDS[limit] + 2):
            try:
                held.append(grab(client, number))
            except Refused as error:
                refused[limit] = {**vars(error), **error.details}
                counts[limit] = number
                break
    return counts, refused, held


def _greedy(address: str, token: str, orders: Connection) -> None:
    """A process that takes all and gives nothing back."""
    hide_pandas_from_arrow()
    client = Client(address, token)
    counts, refused, held = _grab_all(client)
    orders.send((counts, refused))
    orders.recv()
    assert held


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "credentials.toml"
    return {name: create(path, name) for name in ("greedy", "modest")}


@pytest.fixture
def broker(tmp_path: Path, tokens: dict[str, str]) -> Iterator[BrokerProcess]:
    limits = {f"limits.{name}": value for name, value in BOUNDS.items()}
    settings = {**SMALL, **limits, "leases_max": LEASES}
    settings |= {"credentials": tmp_path / "credentials.toml"}
    with BrokerProcess(tmp_path / "data", http="127.0.0.1:0", settings=settings) as process:
        yield process


def _prepare(client: Client) -> None:
    for topic, kind in (("work", "timeline"), ("other", "timeline"), ("entries", "kv")):
        client.call("create_topic", {"topic": topic, "settings": {"kind": kind}})


@pytest.mark.fault(
    "limits",
    "one caller takes all it can get of every limit, and is killed",
    "it gets its share, others work on, what its connections held is free at once",
)
def test_one_caller_takes_all_it_can(
    broker: BrokerProcess, tokens: dict[str, str], tried: Tried
) -> None:
    address = f"{broker.host}:{broker.port}"
    modest = Client(address, tokens["modest"])
    _prepare(modest)
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    greedy = spawned.Process(target=_greedy, args=(address, tokens["greedy"], theirs), daemon=True)
    greedy.start()
    theirs.close()
    counts, refused = ours.recv()
    for limit, bound in BOUNDS.items():
        already = {"sessions_max": BOUNDS["watchers_max"] // 2}.get(limit, 0)
        assert counts[limit] == bound // 2 - already, limit
        told = refused[limit]
        assert (told["code"], told["caller"], told["share"]) == ("overloaded", "greedy", bound // 2)
        assert told["retryable"]
        assert f"limits.{limit}" in told["message"]
        assert "'greedy'" in told["message"]
    # The other one has what it needs, of everything.
    held = [grab(modest, 100) for grab in GRABS.values()]
    modest.call("health")
    text = ask(broker, "/metrics", token=tokens["modest"]).body.decode()
    assert 'fasti_limit_refusals_total{caller="greedy",limit="sessions"} 1.0' in text
    assert 'fasti_limit_used{caller="greedy",limit="snapshots"} 3.0' in text
    assert greedy.pid is not None
    os.kill(greedy.pid, signal.SIGKILL)
    greedy.join()
    again = Client(address, tokens["greedy"])
    until = time.monotonic() + WAIT_S
    for limit in CONNECTED:
        while True:
            try:
                held.append(GRABS[limit](again, 200))
                break
            except Refused:
                # Until the broker has noticed that the connections are gone.
                assert time.monotonic() < until, limit
    tried.times = len(BOUNDS)
    for client in (modest, again):
        client.flight.close()


@pytest.mark.fault(
    "limits",
    "one caller asks for every lease that there is, with idle sessions and with busy ones",
    "it gets its share, and the messages of others are handed out",
)
def test_one_caller_takes_all_the_leases(
    broker: BrokerProcess, tokens: dict[str, str], tried: Tried
) -> None:
    address = f"{broker.host}:{broker.port}"
    with Client(address, tokens["greedy"]) as greedy, Client(address, tokens["modest"]) as modest:
        _prepare(modest)
        sessions = [_session(greedy, "consume", topic="work", consumer=f"g-{n}") for n in range(4)]
        # First what they may be given, then messages for all of it and more.
        for session in sessions:
            session.credit(1_000_000)
            session.ask("clock")
        modest.send("work", rows(payload=[b"x"] * 2 * LEASES))
        refused = None
        until = time.monotonic() + WAIT_S
        while refused is None:
            assert time.monotonic() < until
            for session in sessions:
                session.credit(1_000_000)
                try:
                    session.ask("heartbeat")
                except Refused as error:
                    refused = error
                    break
        assert (refused.code, refused.details["caller"]) == ("overloaded", "greedy")
        assert refused.details["setting"] == "leases_max"
        held = sum(each["leases"] for each in modest.call("consumers", {})["consumers"])
        assert LEASES // 4 <= held <= LEASES // 2
        # The other one's messages are handed out, as many as there is room for.
        mine = _session(modest, "consume", topic="other", consumer="m")
        modest.send("other", rows(payload=[b"x"] * 50))
        mine.credit(25)
        ids = [message["id"] for message in mine.leased(25)]
        mine.use("ack", ids, credit=25)
        assert len(mine.leased(25)) == 25
        # With every message that the greedy one finishes it may have another.
        busy = sessions[0]
        taken = list(busy.tokens)[:10]
        busy.use("ack", taken)
        tried.times = len(sessions)


@pytest.mark.fault("limits", "one caller opens all stages by produce", "`overloaded` at its share")
def test_stages_of_produce_streams_are_shared(
    broker: BrokerProcess, tokens: dict[str, str], tried: Tried
) -> None:
    address = f"grpc://{broker.host}:{broker.port}"
    clients = [Client(address, tokens[name]) for name in ("greedy", "modest")]
    _prepare(clients[0])
    batch = rows(payload=[b"x"])
    for number, client in enumerate(clients):
        stream = client.produce(batch.schema, topic="other")
        receipts = [stream.ask(batch, {"stage": f"s-{number}-{n}"}) for n in range(5)]
        assert [receipt.get("error", {}).get("code") for receipt in receipts] == [
            *[None] * 4,
            "overloaded",
        ]
    tried.times = 10
