"""Priority topics on the wire: the order, the column wherever it stands, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, Refused, rows, statuses

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000


def sent(client: Client, topic: str, **columns: Any) -> list[int]:
    (outcomes,) = client.send(topic, rows(**columns))
    assert statuses(outcomes) == ["ok"] * len(outcomes)
    return [outcome.id for outcome in outcomes]


def leased(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    session = client.consume(topic, "holder")
    got = session.take(count)
    session.finish()
    return got


def test_the_most_urgent_first(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority")
    sent(client, topic, payload=[b"9", b"1", b"5", b"0"], priority=[9, 1, 5, None])
    got = leased(client, topic, 4)
    assert [(m["payload"], m["priority"]) for m in got] == [
        (b"0", 0),
        (b"1", 1),
        (b"5", 5),
        (b"9", 9),
    ]


def test_a_guard_lets_age_count(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority", age_step_us=1_000_000)
    now_us = client.call("clock")["now_us"]
    # Of three that are due: the second waits for 5 s and is 3 steps less urgent.
    due = [now_us - 1_000_000, now_us - 5_000_000, now_us - 1_000_000]
    sent(client, topic, payload=[b"young", b"old", b"last"], priority=[0, 3, 6], due_us=due)
    assert [m["payload"] for m in leased(client, topic, 3)] == [b"old", b"young", b"last"]


def test_it_stands_in_reads_and_is_0_elsewhere(client: Client, make_topic: MakeTopic) -> None:
    urgent, plain = make_topic(kind="priority"), make_topic()
    delay_us = [HOUR_US] * 2
    ids = sent(client, urgent, payload=[b"a", b"b"], delay_us=delay_us, priority=[3, 65_535])
    sent(client, plain, payload=[b"a", b"b"], delay_us=delay_us)
    assert [row["priority"] for row in client.list(urgent)] == [3, 65_535]
    assert [row["priority"] for row in client.list(plain)] == [0, 0]
    assert [row["priority"] for row in client.get(urgent, rows(id=[ids[1], 77]))] == [65_535, None]


def test_an_update_with_a_priority_alone(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority")
    columns = {"headers": [[("h", "1")]] * 2, "key": ["a", "b"], "priority": [3, 4]}
    sent(client, topic, payload=[b"a", b"b"], delay_us=[HOUR_US] * 2, **columns)
    outcomes = client.outcomes(
        "update", {"topic": topic}, rows(key=["b", "none", "a"], priority=[1, 1, 2])
    )
    assert [(o.status, o.version) for o in outcomes] == [("ok", 2), ("not_found", 0), ("ok", 2)]
    a, b = client.list(topic, payload=True)
    assert [(m["priority"], m["payload"], m["headers"]) for m in (a, b)] == [
        (2, b"a", [("h", "1")]),
        (1, b"b", [("h", "1")]),
    ]
    both = rows(key=["a"], payload=[b"A"], priority=[7])
    (outcome,) = client.outcomes("update", {"topic": topic}, both)
    assert (outcome.status, outcome.version) == ("ok", 3)
    a = client.list(topic, payload=True)[0]
    assert (a["priority"], a["payload"], a["version"]) == (7, b"A", 3)


def test_in_a_transaction(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority")
    (first,) = sent(client, topic, payload=[b"a"], delay_us=[HOUR_US], priority=[5])
    commands = [{"op": "produce", "topic": topic}, {"op": "update", "topic": topic}]
    new = rows(payload=[b"b"], delay_us=[HOUR_US], priority=[9])
    for target, committed, shown in (([77], False, [5]), ([first], True, [0, 9])):
        parts = [new, rows(id=target, priority=[0])]
        reply = client.call("transaction", {"commands": commands}, *parts)
        assert reply["committed"] == committed
        assert [row["priority"] for row in client.list(topic)] == shown


@pytest.mark.parametrize(
    ("kind", "priority"), [("priority", -1), ("priority", 65_536), ("timeline", 1)]
)
def test_what_is_none_is_refused(
    client: Client, make_topic: MakeTopic, kind: str, priority: int
) -> None:
    topic = make_topic(kind=kind)
    given = [priority]
    with pytest.raises(Refused) as info:
        client.send(topic, rows(payload=[b"x"], priority=given))
    assert info.value.code == "invalid_argument"
    assert info.value.details["field"] == "priority"
    (message,) = sent(client, topic, payload=[b"x"], delay_us=[HOUR_US])
    for column in ([priority], [None]):
        with pytest.raises(Refused) as info:
            client.call("update", {"topic": topic}, rows(id=[message], priority=column))
        assert info.value.code == "invalid_argument"
    assert client.list(topic)[0]["version"] == 1


def test_the_type_is_int32(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority")
    wide = pa.RecordBatch.from_arrays(
        [pa.array([b"x"]), pa.array(["0"])], names=["payload", "priority"]
    )
    with pytest.raises(Refused) as info:
        client.send(topic, wide)
    assert info.value.details["field"] == "priority"


@pytest.mark.parametrize(
    ("kind", "step"), [("priority", -1), ("priority", 86_400_000_001), ("timeline", 1)]
)
def test_a_step_is_up_to_a_day_and_for_priorities(client: Client, kind: str, step: int) -> None:
    with pytest.raises(Refused) as info:
        client.call("create_topic", {"topic": "x", "settings": {"kind": kind, "age_step_us": step}})
    assert info.value.details["field"] == "age_step_us"


def test_the_step_is_fixed(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="priority")
    with pytest.raises(Refused) as info:
        client.call("change_topic", {"topic": topic, "settings": {"age_step_us": 1}})
    assert info.value.details["field"] == "age_step_us"
