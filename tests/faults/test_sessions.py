"""Consumers that fall silent: half-open sessions, stopped processes, a network that swallows everything.

A silent consumer takes messages, for a while, but none of them to its death; one that dies of a message is
counted; one that is slow and alive is left alone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import RETURNED, VERSION, Client
from tests.faults.conftest import Tried
from tests.integration.serve_rig import SEGMENTS
from tests.integration.trouble.proxy import Proxy

PATIENCE_S = 60.0
MESSAGES = 500
SESSIONS = 20
LEASE = "2s"

_WORKER = """
import os, sys, fasti
address, name = sys.argv[1:]
with fasti.connect(address) as client:
    with client.consumer("work", name=name) as consumer:
        for message in consumer:
            if message.payload == b"poison":
                os._exit(1)
            message.ack(wait=True)
            print(message.payload.decode(), flush=True)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {**SEGMENTS, "limits.session_silence": "1s"}
    with BrokerProcess(tmp_path / "data", settings=settings) as found:
        yield found


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as found:
        found.create_topic("work", lease=LEASE, max_attempts=1)
        yield found


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


def states(client: fasti.Client) -> dict[str, int]:
    return dict(client.messages("work").count())


def metric(client: fasti.Client, name: str) -> float:
    text: str = client.transport.call("metrics")[0]["text"]
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def connected(client: fasti.Client) -> set[str]:
    return {each.consumer for each in client.consumers("work") if each.connected}


@pytest.fixture
def worker(broker: BrokerProcess) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _WORKER, broker.address, name]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.fault(
    "sessions",
    "20 silent sessions with large credit, 500 messages, one attempt each",
    "a living consumer gets all of them, the silent sessions are ended",
)
def test_silent_sessions_take_no_message_to_its_death(
    broker: BrokerProcess, client: fasti.Client, tried: Tried
) -> None:
    client.producer("work").send_batch([b"%d" % n for n in range(MESSAGES)])
    with ExitStack() as open_ones:
        sessions = []
        for number in range(SESSIONS):
            stranger = open_ones.enter_context(Client(f"{broker.host}:{broker.port}"))
            sessions.append(stranger.consume("work", f"silent-{number}"))
            sessions[-1].write({"op": "credit", "count": 100_000})
            if number == 0:
                # All of them are its own before a slow machine has opened the others.
                sessions[0].leased(MESSAGES)
        came = []
        with client.consumer("work", name="living") as consumer:
            while len(came) < MESSAGES:
                message = next(consumer)
                assert message.attempts == 1
                assert str(message.last_reason).startswith("not opened: its consumer fell silent")
                came.append(message.payload)
                message.ack()
            consumer.flush(60)
            assert sorted(came, key=int) == [b"%d" % n for n in range(MESSAGES)]
            assert states(client)["dead"] == 0
            assert metric(client, 'fasti_leases_unopened_total{topic="work"}') >= MESSAGES
            # Nobody closed a socket, and yet nothing is left of them.
            eventually(lambda: metric(client, "fasti_sessions ") == 1)
            assert connected(client) == {"living"}
            assert metric(client, "fasti_sessions_ended_silent_total") == SESSIONS
    tried.times = SESSIONS
    tried.seen = f"{MESSAGES} of {MESSAGES} acked, none dead, 1 session left"


@pytest.mark.fault(
    "sessions",
    "a consumer is stopped (SIGSTOP) before a message comes",
    "another consumer gets it after the lease, the attempt doesn't count",
)
def test_a_stopped_consumer(
    client: fasti.Client, worker: Callable[[str], subprocess.Popen[str]], tried: Tried
) -> None:
    process = worker("stopped")
    assert process.stdout is not None
    client.producer("work").send(b"before").result(60)
    assert process.stdout.readline() == "before\n"
    process.send_signal(signal.SIGSTOP)
    client.producer("work").send(b"during").result(60)
    eventually(lambda: states(client)["leased"] == 1 or states(client)["ready"] == 1)
    with client.consumer("work", name="living") as consumer:
        message = next(consumer)
        assert (message.payload, message.attempts) == (b"during", 1)
        message.ack(wait=True)
        eventually(lambda: connected(client) == {"living"})
    # It knows nothing of that, and goes on when it is let.
    process.send_signal(signal.SIGCONT)
    client.producer("work").send(b"after").result(60)
    assert process.stdout.readline() == "after\n"
    assert states(client)["dead"] == 0
    tried.seen = "not dead with max_attempts=1; the consumer went on afterwards"


@pytest.mark.fault(
    "sessions",
    "a network that swallows every byte",
    "a message that went there goes to another consumer, the attempt doesn't count",
)
def test_a_network_that_swallows_everything(
    broker: BrokerProcess, client: fasti.Client, tried: Tried
) -> None:
    with Proxy(broker.host, broker.port) as network, fasti.connect(network.address) as far:
        gone = far.consumer("work", name="gone")
        client.producer("work").send(b"before").result(60)
        message = next(gone)
        message.ack(wait=True)
        network.hold_up()
        client.producer("work").send(b"during").result(60)
        with client.consumer("work", name="living") as consumer:
            message = next(consumer)
            assert (message.payload, message.attempts) == (b"during", 1)
            message.ack(wait=True)
            eventually(lambda: connected(client) == {"living"})
        network.cut()
        network.let_go()
        gone.close()
    tried.seen = "not dead with max_attempts=1; the session was ended"


@pytest.mark.fault(
    "sessions",
    "a forced release of a consumer that doesn't react",
    "it gets nothing until something comes from it",
)
def test_a_released_consumer_gets_nothing_before_it_is_heard(tmp_path: Path, tried: Tried) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
        Client(f"{broker.host}:{broker.port}") as stranger,
    ):
        client.create_topic("work")
        session = stranger.consume("work", "hung")
        session.write({"op": "credit", "count": 100})
        client.producer("work").send(b"1").result(60)
        session.leased(1)
        assert client.release_consumer("hung") == 1
        assert states(client)["ready"] == 1
        session.write({"op": "clock", "request": 1})
        session.leased(1)
        session.finish()
    tried.seen = "the message stayed ready until the consumer spoke"


@pytest.mark.fault(
    "sessions",
    "a message that kills its worker process",
    "each time counts: dead after max_attempts",
)
def test_a_message_that_kills_its_worker_is_counted(
    client: fasti.Client, worker: Callable[[str], subprocess.Popen[str]], tried: Tried
) -> None:
    client.change_topic("work", lease="1s", max_attempts=2)
    client.producer("work").send(b"poison").result(60)
    for attempt in (1, 2):
        assert worker("victim").wait(PATIENCE_S) == 1
        eventually(lambda: states(client)["leased"] == 0)
        assert states(client)["dead"] == (attempt == 2)
    dead = client.messages("work").dead().to_pylist()
    assert [(each["attempts"], each["reason"]) for each in dead] == [(2, "the lease expired")]
    tried.times = 2
    tried.seen = "dead after 2 attempts"


@pytest.mark.fault(
    "sessions",
    "a client that opens a session and never reads",
    "the session is ended and its connection hung up, though a write is stuck",
)
def test_a_client_that_never_reads(
    broker: BrokerProcess, client: fasti.Client, tried: Tried
) -> None:
    client.producer("work").send_batch([bytes(500_000)] * 20)
    with Client(f"{broker.host}:{broker.port}") as stranger:
        command = {"version": VERSION, "call": "consume", "topic": "work", "consumer": "deaf"}
        writer, reader = stranger.open_exchange(json.dumps(command).encode())
        writer.begin(RETURNED)
        writer.write_metadata(json.dumps({"op": "credit", "count": 1000}).encode())
        eventually(lambda: metric(client, 'fasti_leases_unopened_total{topic="work"}') == 20)
        eventually(lambda: metric(client, "fasti_sessions ") == 0)
        assert connected(client) == set()
        eventually(lambda: states(client)["ready"] == 20)
        del reader, writer
    tried.seen = "ended, 20 messages back, none dead with max_attempts=1"


@pytest.mark.fault(
    "sessions",
    "a handler that works for several leases",
    "nothing: it is alive, and keeps its lease",
)
def test_a_slow_handler_is_left_alone(client: fasti.Client, tried: Tried) -> None:
    client.producer("work").send(b"long").result(60)
    with client.consumer("work", name="slow") as consumer:
        message = next(consumer)
        # This is the handler's work, not a wait: two and a half leases, five silences.
        time.sleep(5)
        message.ack(wait=True)
        assert consumer.reconnections == 0
    assert (states(client)["done"], states(client)["dead"]) == (1, 0)
    assert metric(client, "fasti_sessions_ended_silent_total") == 0
    tried.seen = "acked after 5 s with a lease of 2 s and a silence of 1 s"
