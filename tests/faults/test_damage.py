"""Bytes that rot on the disk of a real broker: what is undamaged arrives, the rest is dead of `corrupt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import Corruption
from fasti.storage.files import LocalFiles
from fasti.storage.tools.scrub_directory import scrub_directory
from tests.faults.conftest import Tried
from tests.integration.serve_rig import SMALL
from tests.unit.cli.rig import run_here

COUNT = 1_000


def payload(number: int) -> bytes:
    return f"message number {number:04d} ".encode() * 5


def fill(client: fasti.Client) -> None:
    client.create_topic("t")
    client.producer("t").send_batch(payloads=[payload(n) for n in range(COUNT)])
    # Into a block.
    client.checkpoint()


def flip_bit(data: Path, number: int) -> Path:
    """In a payload block, in the bytes of one message."""
    for path in sorted(data.glob("blocks/*.payloads")):
        content = bytearray(path.read_bytes())
        place = content.find(payload(number))
        if place >= 0:
            with path.open("r+b") as file:
                file.seek(place + 30)
                file.write(bytes([content[place + 30] ^ 8]))
            return path
    raise AssertionError("the message is in no block")


def receive_all(client: fasti.Client) -> list[bytes]:
    """What comes, until every message is done or dead."""
    got: list[bytes] = []
    with client.consumer("t", name="c", prefetch=50) as consumer:
        while True:
            counts = client.messages("t").count()
            if not counts["ready"] and not counts["leased"]:
                return got
            messages = consumer.take(100, timeout="100ms")
            got += [message.payload for message in messages]
            for message in messages:
                message.ack()
            consumer.flush()


def check(client: fasti.Client, got: list[bytes]) -> int:
    dead = client.messages("t").dead().to_pylist()
    assert {row["reason"] for row in dead} == {"corrupt"}
    assert 500 + 1 in [row["id"] for row in dead]
    # The piece of 1,024 bytes that the bit was in: ten messages of a hundred bytes, and its edges.
    assert 1 <= len(dead) <= 13
    lost = {row["id"] - 1 for row in dead}
    assert sorted(got) == [payload(n) for n in range(COUNT) if n not in lost]
    with pytest.raises(Corruption):
        client.messages("t").get(id=501)
    assert client.messages("t").redrive(501).status == "dead"
    return len(dead)


@pytest.mark.fault(
    "damage",
    "a bit of a payload block flips while the broker runs, or is stopped",
    "what is undamaged is delivered, the messages of its 1,024 bytes are dead of `corrupt`",
)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_flipped_bit_in_a_payload_block(stopped: bool, tmp_path: Path, tried: Tried) -> None:
    with BrokerProcess(tmp_path / "data", settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            fill(client)
        if stopped:
            broker.stop()
        flip_bit(broker.data, 500)
        if stopped:
            broker.start()
        with fasti.connect(broker.address) as client:
            dead = check(client, receive_all(client))
    tried.seen = f"{COUNT - dead} of {COUNT} delivered, {dead} dead"


def run_scrub(*arguments: str) -> tuple[int, Any]:
    done = run_here("storage", "scrub", "--json", *arguments)
    return done.code, done.json


@pytest.mark.fault(
    "damage",
    "a bit of a payload block, then of a block of rows, flips; a scrub reads everything",
    "both are told with file, offset and ids; messages die before they are due; rows are written anew",
)
def test_a_scrub_finds_damage_before_a_reader_does(tmp_path: Path, tried: Tried) -> None:
    with BrokerProcess(tmp_path / "data", settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            payloads = [payload(n) for n in range(COUNT)]
            client.producer("t").send_batch(payloads=payloads, delay="1h")
            client.checkpoint()
            assert client.scrub()["findings"] == []
            damaged = flip_bit(broker.data, 500)
            (rows,) = broker.data.glob("blocks/*.rows")
            content = bytearray(rows.read_bytes())
            content[len(content) // 2] ^= 1
            with rows.open("r+b") as file:
                file.write(content)
            code, told = run_scrub("--address", broker.address)
            assert code == 1
            files = {found["file"]: found for found in told["findings"]}
            assert files.keys() == {f"blocks/{damaged.name}", f"blocks/{rows.name}"}
            client.checkpoint()
            dead = client.messages("t").dead().to_pylist()
            assert 501 in [row["id"] for row in dead]
            assert {row["reason"] for row in dead} == {"corrupt"}
        broker.kill()
        found = scrub_directory(LocalFiles(broker.data))["findings"]
        assert all(not each["file"].endswith(".rows") for each in found)
        # Which opens, because the damaged rows were written anew from memory.
        broker.start()
        with fasti.connect(broker.address) as client:
            assert client.messages("t").count()["scheduled"] == COUNT - len(dead)
    tried.times = 2
    tried.seen = f"2 files found, {len(dead)} dead, the rows healed"


@pytest.mark.fault(
    "damage",
    "a bit flips and nobody asks: the broker scrubs by itself",
    "the messages are dead before they are due",
)
def test_the_broker_scrubs_by_itself(tmp_path: Path, tried: Tried) -> None:
    with BrokerProcess(tmp_path / "data", settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            client.producer("t").send_batch(payloads=[payload(n) for n in range(COUNT)], delay="1h")
            client.checkpoint()
        broker.stop()
    flip_bit(tmp_path / "data", 500)
    with (
        BrokerProcess(tmp_path / "data", settings=SMALL | {"scrub_interval": "100ms"}) as broker,
        fasti.connect(broker.address) as client,
        client.changes(topic="t", follow=True) as changes,
    ):
        tables = (table.to_pylist() for table in changes)
        lapsed = next(row for rows in tables for row in rows if row["op"] == "lapsed")
        assert lapsed["reason"] == "corrupt"
    tried.seen = "found by the first pass"
