"""Frames as rows of the change feed: every event is shown, or hidden on purpose."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fasti.core import events as ev
from fasti.core.journaled import EVENTS
from fasti.core.keys import Rows
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.lifecycle import Verb
from fasti.core.log import group_events as groups
from fasti.core.log.events import LogAppended
from fasti.core.priority.events import PriorityProduced
from fasti.core.replies import Frame
from fasti.core.sinks import events as sinks
from fasti.model import SEQUENCE_BITS
from fasti.storage import event_codec
from fasti.storage.frames import StoredFrame
from fasti.storage.transitions import (
    _SHOWN,
    TRANSITIONS,
    WITH_PAYLOADS,
    count_rows,
    transitions,
)

AT_US = 1_700_000_000_000_000
SEED = (1, 2)


class Names:
    def topic(self, number: int) -> str:
        return {1: "one", 2: "two", 9: "_sinks"}[number]

    def group(self, topic: int, number: int, frame: int) -> str:
        return f"group-{topic}-{number}"


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def stored(sequence: int, events: list[ev.Event], rows: Rows | None = None) -> StoredFrame:
    buffers = event_codec.encode(Frame(sequence, events, rows))
    body = b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers)
    return StoredFrame(sequence, events[-1].at_us, 1, True, True, memoryview(body))


def shown(*frames: StoredFrame, payloads: bool = True, **more: Any) -> list[dict[str, Any]]:
    batch = transitions(frames, Names(), SEED, payloads, **more)
    assert batch.schema == (WITH_PAYLOADS if payloads else TRANSITIONS)
    return [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()]


def test_every_event_is_known() -> None:
    assert set(_SHOWN) == set(EVENTS.values())


def test_what_is_produced_comes_with_its_contents() -> None:
    rows = Rows.of([b"a", b"b", b"c"], key=["k", None, "l"], subject=[None, "x.y", None])
    event = ev.Produced(AT_US, 1, 3, 7, "owner", "", int64s(10, 20, 30), int64s(2, 0, 1))
    first, second, third = shown(stored(5, [event], rows))
    assert first == {
        "position": 5,
        "row": 0,
        "at_us": AT_US,
        "op": "produced",
        "topic": "one",
        "partition": 3,
        "id": 3 << SEQUENCE_BITS | 7,
        "version": 1,
        "due_us": 10,
        "owner": "owner",
        "key": "l",
        "payload": b"c",
    }
    assert (second["row"], second["key"], second["payload"]) == (1, "k", b"a")
    assert (third["row"], third["subject"], third["payload"]) == (2, "x.y", b"b")


def test_payloads_stay_away_unless_asked_for() -> None:
    rows = Rows.of([b"a"], key=["k"])
    event = ev.Produced(AT_US, 1, 0, 1, "", "", int64s(10), int64s(0))
    (row,) = shown(stored(1, [event], rows), payloads=False)
    assert "payload" not in row
    assert row["key"] == "k"


def test_rows_are_numbered_anew_in_each_frame() -> None:
    frames = [
        stored(4, [ev.Cancelled(AT_US, 1, 0, int64s(1, 2)), ev.Expired(AT_US, 1, 0, int64s(3))]),
        stored(
            5, [ev.ProducerAdvanced(AT_US, "p", 1, 1, int64s().astype(np.uint8), *[int64s()] * 2)]
        ),
        stored(6, [ev.Acked(AT_US + 1, 2, 0, int64s(9), int64s(AT_US))]),
    ]
    found = shown(*frames)
    assert [(row["position"], row["row"], row["op"]) for row in found] == [
        (4, 0, "cancelled"),
        (4, 1, "cancelled"),
        (4, 2, "expired"),
        (6, 0, "acked"),
    ]
    assert found[-1]["started_us"] == AT_US
    assert found[-1]["topic"] == "two"


def test_leases_tell_who_and_for_how_long() -> None:
    (row,) = shown(stored(1, [ev.Leased(AT_US, 1, 0, 42, "worker", 30_000_000, int64s(5))]))
    assert (row["token"], row["consumer"], row["lease_us"]) == (42, "worker", 30_000_000)


def test_priorities_versions_and_values() -> None:
    rows = Rows.of([b"a"], key=["k"])
    priority = PriorityProduced(
        AT_US, 1, 0, 1, "", "", int64s(1), int64s(0), priority=np.array([7], dtype=np.uint16)
    )
    entry = KvProduced(AT_US, 2, 0, 1, "", "", int64s(1), int64s(0), version=9)
    removed = Removed(AT_US, 2, 0, 1, int64s(1), int64s(0))
    found = shown(stored(1, [priority], rows), stored(2, [entry], rows), stored(3, [removed], rows))
    assert found[0]["priority"] == 7
    assert (found[1]["op"], found[1]["version"], found[1]["payload"]) == ("put", 9, b"a")
    assert (found[2]["op"], found[2]["key"]) == ("expired_entry", "k")


def test_rows_of_logs_and_of_their_groups() -> None:
    rows = Rows.of([b"a", b"b"])
    frames = [
        stored(1, [LogAppended(AT_US, 1, 2, 10, 100, int64s(0, 1))], rows),
        stored(2, [groups.GroupLeased(AT_US, 1, 2, 4, 8, "c", 5, int64s(10, 11))]),
        stored(
            3,
            [
                groups.GroupReturned(
                    AT_US, 1, 2, 4, int(Verb.NACK), "why", int64s(11), int64s(99), int64s(98)
                )
            ],
        ),
    ]
    found = shown(*frames)
    assert [(row["op"], row["offset"]) for row in found] == [
        ("appended", 10),
        ("appended", 11),
        ("leased", 10),
        ("leased", 11),
        ("nacked", 11),
    ]
    assert found[0]["id"] == 2 << SEQUENCE_BITS | 11
    assert found[2]["group"] == "group-1-4"
    assert (found[4]["reason"], found[4]["due_us"], found[4]["started_us"]) == ("why", 99, 98)


def test_changes_of_topics_say_what_they_are_in_json() -> None:
    (row,) = shown(stored(1, [ev.TopicCreated(AT_US, 1, "one", {"lease_us": 5})]))
    assert (row["op"], row["topic"], row["details"]) == (
        "topic_created",
        "one",
        '{"settings": {"lease_us": 5}}',
    )


def test_some_topics_only() -> None:
    events: list[ev.Event] = [
        ev.Cancelled(AT_US, 1, 0, int64s(1)),
        ev.Cancelled(AT_US, 2, 0, int64s(2)),
    ]
    found = shown(stored(1, events), topics=frozenset({2}))
    assert [row["topic"] for row in found] == ["two"]


def test_nothing_is_a_batch_too() -> None:
    assert transitions([], Names(), SEED).num_rows == 0


@pytest.mark.parametrize("count", [1, 5])
def test_rows_are_counted_by_the_head(count: int) -> None:
    rows = Rows.of([b"x"] * count)
    sequence = np.arange(count)
    frame = stored(1, [ev.Produced(AT_US, 1, 0, 1, "", "", sequence * 7, sequence)], rows)
    assert count_rows(frame.body) == count
    assert count_rows(frame.body, frozenset({1})) == count
    assert count_rows(frame.body, frozenset({2})) == 0


def test_rows_that_are_not_shown_are_not_counted() -> None:
    sequence = np.arange(9)
    receipts = ev.ProducerAdvanced(AT_US, "p", 1, 1, sequence.astype(np.uint8), sequence, sequence)
    frame = stored(1, [receipts, ev.Cancelled(AT_US, 1, 0, int64s(1))])
    assert count_rows(frame.body) == len(shown(frame)) == 1


def test_each_message_of_a_stage_is_told_of() -> None:
    """When it goes live, when its key was taken, and when nobody publishes it."""
    frames = [
        stored(3, [sinks.SinkPublished(AT_US, "s", 7, "produce", 1, ["s/one/7/0/0"])]),
        stored(4, [sinks.StageLanded(AT_US, "s/one/7/0/0", 1, 2, int64s(5, 7), int64s(6))]),
        stored(5, [sinks.StageRowsDropped(AT_US, "other", 1, 0, int64s(1, 2))]),
    ]
    found = shown(*frames)
    assert [(row["op"], row.get("id"), row.get("reason")) for row in found] == [
        ("sink_published", None, None),
        ("published", 2 << SEQUENCE_BITS | 5, None),
        ("published", 2 << SEQUENCE_BITS | 7, None),
        ("stage_dropped", 2 << SEQUENCE_BITS | 6, "skipped"),
        ("stage_dropped", 1, "dropped"),
        ("stage_dropped", 2, "dropped"),
    ]
    assert found[0]["details"] == json.dumps(
        {"sink": "s", "batch": 7, "operation": "produce", "stages": ["s/one/7/0/0"]}
    )
    assert (found[1]["stage"], found[1]["version"]) == ("s/one/7/0/0", 1)


def test_what_sinks_keep_for_themselves_is_not_shown() -> None:
    rows = Rows.of([b"parcel"])
    event = ev.Produced(AT_US, 9, 0, 1, "", "s/one/7/0/0", int64s(5000), int64s(0))
    dropped = sinks.StageRowsDropped(AT_US, "s/one/7/0/0", 9, 0, int64s(1))
    other = ev.Cancelled(AT_US, 1, 0, int64s(4))
    (row,) = shown(stored(1, [event, dropped, other], rows))
    assert row["op"] == "cancelled"


def test_messages_that_expire_each_at_its_own_moment() -> None:
    """In one go, whatever their number: each moment was looked for among all of them."""
    event = ev.ExpirySet(
        AT_US, 1, 0, int64s(1, 2, 3, 4), int64s(AT_US + 9, 0, AT_US + 5, AT_US + 9)
    )
    rows = shown(stored(7, [event]))
    told = [(row["row"], row["id"], json.loads(row["details"])["expires_us"]) for row in rows]
    assert told == [(0, 1, AT_US + 9), (1, 2, None), (2, 3, AT_US + 5), (3, 4, AT_US + 9)]
    many = np.arange(1, 50_001)
    table = transitions([stored(8, [ev.ExpirySet(AT_US, 1, 0, many, AT_US + many)])], Names(), SEED)
    assert table.num_rows == 50_000
    assert json.loads(table["details"][-1].as_py()) == {"expires_us": AT_US + 50_000}
