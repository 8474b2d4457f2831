"""A change of one message by its values is answered, byte for byte, as it is by an Arrow batch of one row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fasti
from fasti.broker.caller import Caller
from fasti.broker.calls.call_stream import CallStream
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.model import DUE_MAX_US
from fasti.protocol.envelope import Header, pack, unpack
from fasti.protocol.schemas import VERSION
from fasti.protocol.single_row import SingleRow

INT64_MAX = (1 << 63) - 1
HOUR_US = 3_600_000_000


class Rig:
    """A broker in this process, with a message in each state, and a stream of calls."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.client = fasti.connect(f"embedded:{directory}")
        transport = self.client.transport
        assert isinstance(transport, EmbeddedTransport)
        service = transport.service
        self.stream = CallStream(lambda action, header: service, Caller("me"), {})
        self.client.create_topic("t", partitions=partitions)
        self.client.create_topic("log", kind="log")
        self.ids: dict[str, int] = {}
        with self.client.producer("t", owner="me") as producer:
            for key in ("pending", "cancelled", "moved", "leased"):
                delay = 0 if key == "leased" else "1h"
                self.ids[key] = producer.send(b"x", key=key, delay=delay).result().id
            self.ids["without"] = producer.send(b"x", delay="1h").result().id
        with self.client.producer("t", owner="other") as producer:
            self.ids["theirs"] = producer.send(b"x", key="theirs", delay="1h").result().id
        messages = self.client.messages("t", owner="me")
        messages.cancel(key="cancelled")
        messages.move(key="moved", delay="2h")
        self.consumer = iter(self.client.consumer("t", name="worker", prefetch=1))
        assert next(self.consumer).key == "leased"

    def answer(self, action: str, header: Header, part: Any) -> Any:
        """To a request over the wire; `part` is a row by its values, or a batch."""
        header = {"action": action, "version": VERSION, "topic": "t", **header}
        body = pack(header, [part], inline=isinstance(part, SingleRow))
        found, parts = unpack(self.stream.answer(pa.py_buffer(body)))
        # Until when a lease runs, and which delay is the longest, is told by the clock.
        found.pop("at_us", None)
        if "delay must lie" in str(found.get("error")):
            found = {"error": re.sub(r"\d{15,}", "N", str(found["error"]))}
        return found, [part.drop_columns(["lease_until_us"]).to_pydict() for part in parts]


@pytest.fixture(scope="module", params=[1, 5])
def rig(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("single"), request.param)
    yield made
    made.client.close()


HEADERS: list[Header] = [
    {},
    {"owner": ""},
    {"topic": "nowhere"},
    {"topic": "log"},
    {"owner": 5},
    {"dry_run": "yes"},
    {"color": "red"},
    {"version": 99},
    {"once": {"client": "", "number": 1}},
]
NAMED: list[dict[str, Any]] = [
    *({"key": key} for key in ("pending", "cancelled", "moved", "leased", "theirs", "nobody", "")),
    *({"key": "pending", "version": version} for version in (0, 1, 2, -1, INT64_MAX)),
    *({"id": number} for number in (0, -1, 99, INT64_MAX, -INT64_MAX - 1)),
    {"id": 1, "key": "pending"},
    {"version": 1},
    {"key": 7},
    {"id": "pending"},
    {"id": 1, "color": "red"},
]
WHEN: list[dict[str, Any]] = [
    {"delay_us": HOUR_US},
    {"due_us": 0},
    {"due_us": DUE_MAX_US},
    {"due_us": DUE_MAX_US + 1},
    {"due_us": -1},
    {"delay_us": -1},
    {"delay_us": INT64_MAX},
    {"delay_us": 1, "due_us": 1},
    {"delay_us": 1, "expires_us": DUE_MAX_US + 1},
    {"delay_us": 1, "expires_us": 0},
    {"delay_us": 1, "expires_after_us": HOUR_US},
    {"delay_us": 1, "expires_after_us": INT64_MAX},
    {"delay_us": 1, "expires_after_us": 1, "expires_us": 1},
    {"delay_us": "1h"},
    {},
]


def test_answers_are_the_same(rig: Rig) -> None:
    named = [*NAMED, *({"id": number} for number in rig.ids.values())]
    asked = [("cancel", header, row) for header in HEADERS for row in named]
    asked += [("move", {}, row | when) for row in named for when in WHEN]
    asked += [("update", {}, row) for row in named]
    asked = [
        (action, {"owner": "me", "dry_run": True, **header}, row) for action, header, row in asked
    ]
    asked += [("get", {}, row) for row in named]
    seen: Counter[str] = Counter()
    for action, header, row in asked:
        plain = SingleRow(row)
        given = [rig.answer(action, header, part) for part in (plain, plain.batch)]
        assert given[0] == given[1], (action, header, row)
        seen.update(re.findall(r"'(?:code|status)': (?:\[\[)?'(\w+)'", str(given[0][0])))
    statuses = {"ok", "conflict", "cancelled", "leased", "not_found", "not_owner"}
    assert {*seen} >= statuses | {"invalid_argument"}


def test_changes_are_the_same(rig: Rig) -> None:
    """Two messages that are alike, one changed by values and one by a batch."""
    with rig.client.producer("t", owner="me") as producer:
        for way in ("row", "batch"):
            producer.send(b"x", key=f"by-{way}", delay="1h").result()
    found = {}
    for way in ("row", "batch"):
        row = SingleRow({"key": f"by-{way}", "version": 1, "due_us": DUE_MAX_US})
        moved, _ = rig.answer("move", {"owner": "me"}, row if way == "row" else row.batch)
        again, _ = rig.answer("move", {"owner": "me"}, row if way == "row" else row.batch)
        state = rig.client.messages("t").get(key=f"by-{way}")
        assert state is not None
        gone = SingleRow({"key": f"by-{way}", "version": 2})
        cancelled, _ = rig.answer("cancel", {"owner": "me"}, gone if way == "row" else gone.batch)
        assert rig.client.messages("t").get(key=f"by-{way}") is None
        answers = (moved, again, cancelled)
        found[way] = [(answer["status"], answer["versions"]) for answer in answers]
        found[way] += [state["due_us"], state["version"]]
    assert found["row"] == found["batch"]
    assert [status for status, _ in found["row"][:3]] == [
        [["ok", 1]],
        [["conflict", 1]],
        [["ok", 1]],
    ]
