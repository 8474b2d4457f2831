"""Watching over the death of the broker: nothing is missed, nothing comes twice.

A process that is killed again and again takes puts and deletes of several writers; a watcher comes
back each time with the position that it was last told. What it was told must make up exactly what
the broker holds in the end.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import Client, Refused, refusal
from tests.conformance.test_protocol_kv import Watcher, entries
from tests.integration.serve_rig import SMALL, client_of

# It speaks to one shard, without the SDK.
pytestmark = pytest.mark.one_shard

TOPIC = "profiles"
LOST = (fl.FlightError, pa.ArrowException, OSError, Refused)
KEYS = [f"key-{n}" for n in range(40)]


class Story:
    """What a watcher was told, put together."""

    def __init__(self) -> None:
        self.position = 0
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.told = 0

    def read_until(self, client: Client, reached: Any) -> None:
        """Watches from where it stands until `reached()` holds, or the connection is lost."""
        watcher = Watcher(client, TOPIC, position=self.position)
        try:
            while not reached():
                self._note(*watcher.next("changes"))
        except LOST as error:
            refused = refusal(error)
            if refused is not None and not refused.retryable:
                raise refused from error
        finally:
            watcher.end()

    def _note(self, metadata: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        assert metadata["position"] > self.position, "a change comes twice"
        for row in rows:
            self.told += 1
            if row["op"] == "put":
                before = self.entries.get(row["key"])
                assert before is None or row["version"] > before[1]
                self.entries[row["key"]] = row["value"], row["version"]
            else:
                del self.entries[row["key"]]
        self.position = metadata["position"]


def write(broker: BrokerProcess, seed: int, stop: threading.Event, done: list[int]) -> None:
    """Puts, deletes and short lives until told to stop, whatever happens to the broker."""
    rng = random.Random(seed)
    client = client_of(broker)
    while not stop.is_set():
        keys = rng.sample(KEYS, 5)
        try:
            if rng.random() < 0.2:
                client.call("kv_delete", {"topic": TOPIC}, entries(key=keys[:2]))
                continue
            values = [b"%d" % rng.randrange(1_000_000) for _ in keys]
            lives = [rng.choice([None, None, None, 30_000]) for _ in keys]
            client.call("kv_put", {"topic": TOPIC}, entries(key=keys, value=values, ttl_us=lives))
            done[0] += 1
        except LOST:
            stop.wait(0.02)
            client.flight.close()
            client = client_of(broker)
    client.flight.close()


def held(client: Client) -> dict[str, tuple[bytes, int]]:
    rows = client.read({"version": 1, "call": "kv", "topic": TOPIC}).to_pylist()
    return {row["key"]: (row["value"], row["version"]) for row in rows}


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nothing_is_missed_when_the_broker_dies(tmp_path: Path, end: str) -> None:
    rng = random.Random(5)
    story = Story()
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        with client_of(broker) as client:
            client.call("create_topic", {"topic": TOPIC, "settings": {"kind": "kv"}})
        stop, done = threading.Event(), [0]
        writers = [
            threading.Thread(target=write, args=(broker, n, stop, done), daemon=True)
            for n in range(2)
        ]
        for writer in writers:
            writer.start()
        for _ in range(3):
            wanted = story.told + rng.randrange(20, 200)
            with client_of(broker) as client:
                # Into what this process wrote: the journal reaches back to the last checkpoint.
                now = client.call("kv_describe", {"topic": TOPIC})["position"]
                story.read_until(
                    client,
                    lambda wanted=wanted, now=now: story.told >= wanted and story.position >= now,
                )
            getattr(broker, end)()
            broker.start()
        stop.set()
        for writer in writers:
            writer.join(30)
        with client_of(broker) as client:
            # Everything that lived for a moment only is gone before we compare.
            client.call("kv_put", {"topic": TOPIC}, entries(key=["last"], value=[b"put"]))
            story.read_until(client, lambda: "last" in story.entries)
            described = client.call("kv_describe", {"topic": TOPIC})
            while described["expiring"]:
                described = client.call("kv_describe", {"topic": TOPIC})
            story.read_until(client, lambda: story.entries == held(client))
            assert story.entries == held(client)
    assert done[0] > 20
