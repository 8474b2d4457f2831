"""Producers and consumers of a broker with two processes and four shards, one of which is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.model import SEQUENCE_BITS
from tests.shards.processes_rig import SETTINGS, kill_and_wait, pids

SHARDS, PROCESSES = 4, 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    given = {"shards": SHARDS, "processes": PROCESSES, "settings": SETTINGS}
    with BrokerProcess(tmp_path / "data", **given) as started:
        pids(started, PROCESSES)
        yield started


def test_calls_over_processes(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("double", partitions=8)
        app = fasti.App(client)

        @app.on("double", concurrency=4)
        def double(number: int) -> int:
            return 2 * number

        with app:
            for number in range(40):
                answer = client.call("double", b"%d" % number, key=f"k{number}", timeout="20s")
                assert int(answer.payload) == 2 * number


def test_nothing_is_lost_early_or_doubled_when_a_process_is_killed(broker: BrokerProcess) -> None:
    """Sends, deliveries and acks go on over the kill of one of two processes, in the middle of all."""
    count = 3_000
    with fasti.connect(broker.address) as client:
        client.create_topic("t", partitions=8, lease="2s")
        kill = threading.Event()
        consumer = client.consumer("t", name="worker", timeout="60s")
        delivered: Counter[int] = Counter()
        acked: dict[int, int] = {}
        problems: list[str] = []

        def consume() -> None:
            for batch in consumer.batches(100):
                for message in batch.messages:
                    number = int(message.payload)
                    delivered[number] += 1
                    if message.started_us < message.due_us:
                        problems.append(f"{number} was early")
                    if number in acked:
                        problems.append(f"{number} came again after its ack")
                outcomes = batch.ack(wait=True, timeout="60s")
                for message, outcome in zip(batch.messages, outcomes, strict=True):
                    if outcome.ok:
                        acked[int(message.payload)] = message.id
                if len(acked) > count // 6:
                    kill.set()
                if len(acked) == count:
                    return

        worker = threading.Thread(target=consume)
        worker.start()
        producer = client.producer("t")
        receipts = []
        killed = False
        for number in range(count):
            key = f"k{number}" if number % 2 else None
            receipts.append(producer.send(b"%d" % number, key=key, delay="10ms"))
            if number > count // 2 and not killed:
                assert kill.wait(60)
                kill_and_wait(broker, 1)
                killed = True
        outcomes = [receipt.result(timeout="60s") for receipt in receipts]
        worker.join(120)
        assert not worker.is_alive()
        consumer.close()
        assert problems == []
        assert all(outcome.ok for outcome in outcomes)
        assert acked == {number: outcome.id for number, outcome in enumerate(outcomes)}
        assert len({outcome.id for outcome in outcomes}) == count
        layout = client.transport.layout("t")
        shards = {layout.shard_of(outcome.id >> SEQUENCE_BITS) for outcome in outcomes}
        assert shards == set(range(SHARDS))
        counts = client.messages("t").count()
        assert counts["done"] == count == sum(counts.values())


def fasti_command(broker: BrokerProcess, *arguments: str, lines: str = "") -> str:
    """What a command of `fasti` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fasti", *arguments],
        env={**os.environ, "FASTI_ADDRESS": broker.address},
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_produce_and_consume_on_the_command_line(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("t", partitions=8)
    rows = [f'{{"id": "key-{n}"}}' for n in range(40)]
    fasti_command(broker, "produce", "t", "--key-field", "id", lines="\n".join(rows))
    printed = fasti_command(broker, "consume", "t", "-n", "40", "--format", "{payload}")
    assert sorted(line for line in printed.splitlines() if line) == sorted(rows)
