"""The protocol from outside: answers to requests, and dead letters by filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.protocol_client import Client, Refused, expand, returned, rows, statuses

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000


def requested(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    """Requests in somebody's hands."""
    client.send(topic, rows(payload=[b"?"] * count, headers=[[("reply_to", "x")]] * count))
    session = client.consume(topic, "replier")
    got = session.take(count)
    session.finish()
    return got


def handed(got: list[dict[str, Any]]) -> Any:
    return returned([each["id"] for each in got], [each["token"] for each in got])


# reply


def test_an_answer_and_the_ack_of_its_request(client: Client, make_topic: MakeTopic) -> None:
    requests, inbox = make_topic(), make_topic()
    got = requested(client, requests, 2)
    answers = rows(
        to=[inbox, inbox],
        deadline_us=[None, client.call("clock")["now_us"] + HOUR_US],
        payload=[b"a", b"b"],
        headers=[[("correlation_id", "1")], None],
        content_type=["text/plain", None],
    )
    reply = client.call("reply", {"topic": requests}, answers, handed(got))
    assert statuses(reply) == ["ok", "ok"]
    assert "reasons" not in reply
    assert client.call("count", {"topic": requests})["counts"]["done"] == 2
    found = client.list(inbox, payload=True)
    assert [row["id"] for row in found] == [outcome.id for outcome in expand(reply)]
    assert [(row["payload"], row["content_type"]) for row in found] == [
        (b"a", "text/plain"),
        (b"b", None),
    ]
    assert dict(found[0]["headers"]) == {"correlation_id": "1"}


def test_too_late_or_for_nobody_is_dead_with_its_reason(
    client: Client, make_topic: MakeTopic
) -> None:
    requests, inbox = make_topic(), make_topic()
    got = requested(client, requests, 3)
    answers = rows(to=[inbox, "gone", inbox], deadline_us=[1, None, None], payload=[b"x"] * 3)
    reply = client.call("reply", {"topic": requests}, answers, handed(got))
    assert statuses(reply) == ["dead", "dead", "ok"]
    assert set(reply["reasons"]) == {"0", "1"}
    assert client.call("count", {"topic": requests})["counts"]["done"] == 3
    dead = {row["id"]: row["reason"] for row in client.list("_replies", state="dead")}
    for row in (0, 1):
        assert dead[expand(reply)[row].id] == reply["reasons"][str(row)]
    assert client.call("count", {"topic": inbox})["counts"]["ready"] == 1


def test_a_stale_lease_answers_nothing(client: Client, make_topic: MakeTopic) -> None:
    requests, inbox = make_topic(), make_topic()
    got = requested(client, requests, 2)
    got[0]["token"] += 1_000_000
    answers = rows(to=[inbox, inbox], payload=[b"a", b"b"])
    assert statuses(client.call("reply", {"topic": requests}, answers, handed(got))) == [
        "stale_lease",
        "ok",
    ]
    assert [row["payload"] for row in client.list(inbox, payload=True)] == [b"b"]
    again = client.call("reply", {"topic": requests}, answers, handed(got))
    assert statuses(again)[1] == "done"
    assert client.call("count", {"topic": inbox})["counts"]["ready"] == 1


def test_an_answer_without_an_ack(client: Client, make_topic: MakeTopic) -> None:
    inbox = make_topic()
    assert statuses(client.call("reply", {}, rows(to=[inbox], payload=[b"a"]))) == ["ok"]
    assert client.call("count", {"topic": inbox})["counts"]["ready"] == 1


def test_answers_that_make_no_sense(client: Client, make_topic: MakeTopic) -> None:
    requests, inbox = make_topic(), make_topic()
    got = requested(client, requests, 1)
    good = rows(to=[inbox], payload=[b"a"])
    for header, parts in (
        ({"topic": requests}, []),
        ({"topic": requests}, [good]),
        ({}, [good, handed(got)]),
        ({"topic": requests}, [rows(to=[None], payload=[b"a"]), handed(got)]),
        ({"topic": requests}, [rows(to=[inbox]), handed(got)]),
        ({"topic": requests}, [rows(payload=[b"a"]), handed(got)]),
        ({"topic": requests}, [rows(to=[inbox], payload=[None]), handed(got)]),
        ({"topic": requests}, [rows(to=[inbox], payload=[b"a"], key=["k"]), handed(got)]),
        ({"topic": requests}, [rows(to=[inbox] * 2, payload=[b"a"] * 2), handed(got)]),
        ({"topic": requests}, [rows(to=[], payload=[]), returned([], [])]),
        ({"topic": requests, "group": "g"}, [good, handed(got)]),
        ({}, [rows(to=[inbox] * 1_001, payload=[b""] * 1_001)]),
        ({}, [rows(to=[inbox], payload=[b"x" * ((1 << 20) + 1)])]),
    ):
        with pytest.raises(Refused) as refused:
            client.call("reply", header, *parts)
        assert refused.value.code == "invalid_argument", header
    assert client.call("count", {"topic": inbox})["counts"]["ready"] == 0
    assert client.call("count", {"topic": requests})["counts"]["leased"] == 1


# Dead letters


def died(client: Client, topic: str, *reasons: str, **columns: Any) -> list[int]:
    """Messages that died of these reasons."""
    client.send(topic, rows(payload=[b"%d" % n for n in range(len(reasons))], **columns))
    session = client.consume(topic, "undertaker")
    got = session.take(len(reasons))
    session.finish()
    for message, reason in zip(got, reasons, strict=True):
        client.call("reject", {"topic": topic, "reason": reason}, handed([message]))
    return [message["id"] for message in got]


def test_pieces_and_their_cursor(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = died(client, topic, *["x", "y", "x", "x", "y"])
    reply = client.call("redrive_dead", {"topic": topic, "reason": "x", "limit": 2})
    assert (reply["looked"], reply["outcomes"], reply["failed"]) == (2, {"ok": 2}, [])
    assert (reply["next_after_id"], reply["left"]) == (ids[2], 3)
    reply = client.call(
        "redrive_dead",
        {"topic": topic, "reason": "x", "limit": 2, "after_id": reply["next_after_id"]},
    )
    assert (reply["looked"], reply["next_after_id"], reply["left"]) == (1, 0, 2)
    counted = client.call("count_dead", {"topic": topic})
    assert (counted["dead"], counted["reasons"], counted["reasons_left"]) == (2, [["y", 2]], 0)
    assert [row["id"] for row in client.list(topic, reason="y")] == [ids[1], ids[4]]
    reply = client.call("purge_dead", {"topic": topic}, rows(id=[ids[4], ids[0], 99]))
    assert reply["outcomes"] == {"ok": 1}
    assert [row["id"] for row in client.list(topic, state="dead")] == [ids[1]]


def test_to_another_topic(client: Client, make_topic: MakeTopic) -> None:
    topic, other = make_topic(), make_topic()
    client.send(other, rows(payload=[b"there"], key=["b"], delay_us=[HOUR_US]))
    ids = died(client, topic, "x", "y", key=["a", "b"], subject=["s.t", None])
    header = {"topic": topic, "to": other, "delay_us": HOUR_US}
    reply = client.call("redrive_dead", header)
    assert reply["outcomes"] == {"ok": 1, "conflict": 1}
    assert reply["failed"] == [{"id": ids[1], "status": "conflict"}]
    assert reply["left"] == 1
    (moved,) = [row for row in client.list(other, payload=True) if row["key"] == "a"]
    assert (moved["payload"], moved["subject"], moved["state"]) == (b"0", "s.t", "scheduled")
    assert dict(moved["headers"]) == {
        "fasti-dead-topic": topic,
        "fasti-dead-reason": "x",
        "fasti-dead-attempts": "1",
    }


def test_filters_that_make_no_sense(client: Client, make_topic: MakeTopic) -> None:
    topic, other = make_topic(), make_topic()
    died(client, topic, "x")
    for action, header in (
        ("redrive_dead", {"limit": 0}),
        ("redrive_dead", {"after_id": -1}),
        ("redrive_dead", {"reason": 7}),
        ("redrive_dead", {"owner": ["a"]}),
        ("redrive_dead", {"to": 7}),
        ("redrive_dead", {"delay_us": 1, "due_us": 1}),
        ("redrive_dead", {"delay_us": -5}),
        ("redrive_dead", {"to": other, "delay_us": -5}),
        ("redrive_dead", {"group": "g"}),
        ("purge_dead", {"to": other}),
        ("purge_dead", {"due_from_us": "now"}),
        ("count_dead", {"reason": {}}),
    ):
        with pytest.raises(Refused) as refused:
            client.call(action, {"topic": topic, **header})
        assert refused.value.code == "invalid_argument", (action, header)
    with pytest.raises(Refused) as missing:
        client.call("redrive_dead", {"topic": topic, "to": "nowhere"})
    assert missing.value.code == "not_found"
    assert client.call("count_dead", {"topic": topic})["dead"] == 1
