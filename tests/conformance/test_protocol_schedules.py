"""The protocol from outside: schedules."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.protocol_client import Client, Refused

MakeTopic = Callable[..., str]
YEARLY = {"cron": "@yearly"}


@pytest.fixture
def cron(make_topic: MakeTopic) -> str:
    return make_topic(kind="cron")


@pytest.fixture
def target(make_topic: MakeTopic) -> str:
    return make_topic()


def put(client: Client, topic: str, expected: int | None = None, **schedules: Any) -> list[Any]:
    listed = [{"name": name, "schedule": given} for name, given in schedules.items()]
    header: dict[str, Any] = {"topic": topic, "schedules": listed}
    if expected is not None:
        header["expected"] = expected
    found = client.call("put_schedules", header)["outcomes"]
    return [(each["status"], each["version"]) for each in found]


def known(client: Client, topic: str, name: str) -> dict[str, Any]:
    (found,) = client.call("schedules", {"topic": topic, "name": name})["schedules"]
    return dict(found)


def test_put_and_what_is_told_of_it(client: Client, cron: str, target: str) -> None:
    given = {**YEARLY, "target": target, "payload": base64.b64encode(b"hello").decode()}
    assert put(client, cron, a=given, b={**given, "timezone": "Asia/Tokyo"}) == [("ok", 1)] * 2
    # The same again, and one that differs.
    assert put(client, cron, a=given) == [("ok", 1)]
    assert put(client, cron, a={**given, "gap": "shift", "jitter_us": 0}) == [("ok", 1)]
    assert put(client, cron, a={**given, "gap": "skip"}) == [("ok", 2)]
    assert put(client, cron, expected=1, a=given) == [("conflict", 2)]
    assert put(client, cron, expected=0, a=given, c=given) == [("conflict", 2), ("ok", 1)]
    assert put(client, cron, expected=2, a=given) == [("ok", 3)]
    found = known(client, cron, "b")
    following = found.pop("next")
    assert found == {
        "name": "b",
        "schedule": {**given, "timezone": "Asia/Tokyo"},
        "version": 1,
        "paused": False,
        "last_us": None,
        "last_id": None,
        "fired": 0,
        "skipped": 0,
        "target_missing": False,
    }
    assert following["local"].endswith("-01-01T00:00:00+09:00")
    assert following["at_us"] > client.call("clock")["now_us"]


def test_pages_of_schedules(client: Client, cron: str, target: str) -> None:
    put(client, cron, **{f"s{n}": {**YEARLY, "target": target} for n in range(5)})
    names, after = [], -1
    while after is not None:
        page = client.call("schedules", {"topic": cron, "after_number": after, "limit": 2})
        assert len(page["schedules"]) <= 2
        names += [each["name"] for each in page["schedules"]]
        after = page["next_after_number"]
    assert sorted(names) == [f"s{n}" for n in range(5)]


def test_preview_of_a_name_and_of_a_definition(client: Client, cron: str, target: str) -> None:
    definition = {"cron": "30 2 * * *", "timezone": "Europe/Paris"}
    put(client, cron, daily={**definition, "target": target})
    window = {"count": 2, "after_us": 1_774_656_000_000_000}
    expected = [
        {"at_us": 1_774_661_400_000_000, "local": "2026-03-28T02:30:00+01:00"},
        {"at_us": 1_774_746_000_000_000, "local": "2026-03-29T03:00:00+02:00"},
    ]
    named = client.call("preview", {"topic": cron, "name": "daily", **window})
    given = client.call("preview", {"schedule": definition, **window})
    assert named["occurrences"] == given["occurrences"] == expected
    assert len(client.call("preview", {"topic": cron, "name": "daily"})["occurrences"]) == 10


def test_pause_run_and_delete(client: Client, cron: str, target: str) -> None:
    put(client, cron, once={**YEARLY, "target": target, "overlap": "skip"})
    place = {"topic": cron, "name": "once"}
    assert client.call("pause_schedule", {**place, "paused": True})["changed"] is True
    assert client.call("pause_schedule", {**place, "paused": True})["changed"] is False
    assert known(client, cron, "once")["paused"] is True
    assert known(client, cron, "once")["next"] is None
    (ran,) = client.outcomes("run_schedule", place)
    assert ran.status == "ok"
    (again,) = client.outcomes("run_schedule", place)
    assert (again.status, again.id) == ("conflict", ran.id)
    assert client.call("count", {"topic": target})["counts"]["ready"] == 1
    found = known(client, cron, "once")
    assert (found["fired"], found["last_id"]) == (1, ran.id)
    client.call("delete_schedule", place)
    for action, more in (
        ("delete_schedule", {}),
        ("run_schedule", {}),
        ("pause_schedule", {"paused": True}),
        ("schedules", {}),
        ("preview", {}),
    ):
        with pytest.raises(Refused) as refused:
            client.call(action, {**place, **more})
        assert refused.value.code == "not_found"


def test_messages_say_which_schedule_and_which_occurrence(
    client: Client, cron: str, target: str
) -> None:
    given = {"every_us": 100_000, "target": target, "headers": {"a": "b"}}
    put(client, cron, often=given)
    # They lie there ahead of their time: one put is enough to see some.
    found: list[dict[str, Any]] = []
    while not found:
        listing = {"version": 1, "call": "list", "topic": target, "payload": True, "limit": 1}
        found = client.read(listing).to_pylist()
    headers = dict(found[0]["headers"])
    assert (headers["a"], headers["fasti-schedule"]) == ("b", "often")
    assert headers["fasti-occurrence"].endswith("Z")
    assert found[0]["due_us"] % 100_000 == 0


HOSTILE: list[tuple[Any, str]] = [
    ({}, "cron"),
    ({"cron": "* * * * *", "every_us": 1_000_000}, "cron"),
    ({"cron": 7}, "cron"),
    ({"cron": "* * * *"}, "cron"),
    ({"cron": "*" * 300}, "cron"),
    ({"cron": "* * * * * * *"}, "cron"),
    ({"cron": "\x00 * * * *"}, "cron"),
    ({"every_us": 1}, "every"),
    ({"every_us": -5}, "every"),
    ({"every_us": 1 << 80}, "every"),
    ({"every_us": 1.5}, "every_us"),
    ({"every_us": True}, "every_us"),
    ({**YEARLY, "timezone": "../../etc/passwd"}, "timezone"),
    ({**YEARLY, "timezone": "\ud800"}, "schedules"),
    ({**YEARLY, "timezone": "a\x00b"}, "timezone"),
    ({**YEARLY, "payload": "not base64!"}, "payload"),
    ({**YEARLY, "payload": 5}, "payload"),
    ({**YEARLY, "headers": {"a": 1}}, "headers"),
    ({**YEARLY, "headers": []}, "headers"),
    ({**YEARLY, "headers": {"a": "\ud800"}}, "schedules"),
    ({**YEARLY, "start_us": -1}, "start"),
    ({**YEARLY, "start_us": 10, "end_us": 5}, "end"),
    ({**YEARLY, "end_us": 1 << 70}, "end"),
    ({**YEARLY, "jitter_us": 1 << 60}, "jitter"),
    ({**YEARLY, "misfire_max": 10**9}, "misfire_max"),
    ({**YEARLY, "misfire_grace_us": -1}, "misfire_grace"),
    ({**YEARLY, "priority": 70_000}, "priority"),
    ({**YEARLY, "overlap": "perhaps"}, "overlap"),
    ({**YEARLY, "colour": "red"}, "colour"),
    ({**YEARLY, "target": ""}, "target"),
    ({**YEARLY, "target": None}, "target"),
]


@pytest.mark.parametrize(("given", "field"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_definition_that_makes_no_sense(
    client: Client, cron: str, target: str, given: Any, field: str
) -> None:
    good = {**YEARLY, "target": target}
    with pytest.raises(Refused) as refused:
        put(client, cron, good=good, bad={"target": target, **given})
    assert (refused.value.code, refused.value.details["field"]) == ("invalid_argument", field)
    assert client.call("schedules", {"topic": cron})["schedules"] == []
    if "target" not in given:
        with pytest.raises(Refused):
            client.call("preview", {"schedule": given or {"gap": "skip"}})


@pytest.mark.parametrize(
    ("action", "header"),
    [
        ("put_schedules", {"schedules": []}),
        ("put_schedules", {"schedules": [5]}),
        ("put_schedules", {"schedules": [{"name": "a"}]}),
        ("put_schedules", {"schedules": [{"name": "", "schedule": {}}]}),
        ("put_schedules", {"schedules": [{"name": "a", "schedule": {}}] * 251}),
        ("put_schedules", {"schedules": {}}),
        ("schedules", {"limit": "many"}),
        ("schedules", {"after_number": 1 << 80}),
        ("preview", {"name": "a", "count": 0}),
        ("preview", {"name": "a", "count": 1_000_000}),
        ("preview", {"name": "a", "schedule": YEARLY}),
        ("preview", {}),
        ("preview", {"schedule": YEARLY, "after_us": "now"}),
        ("pause_schedule", {"name": "a", "paused": 1}),
        ("pause_schedule", {"name": "a"}),
        ("run_schedule", {}),
        ("delete_schedule", {"name": 5}),
    ],
)
def test_a_header_that_makes_no_sense(
    client: Client, cron: str, action: str, header: dict[str, Any]
) -> None:
    with pytest.raises(Refused) as refused:
        client.call(action, {"topic": cron, **header})
    assert refused.value.code == "invalid_argument"


def test_other_kinds_have_no_schedules_and_schedules_no_messages(
    client: Client, cron: str, target: str
) -> None:
    for action in ("put_schedules", "schedules"):
        header = {"schedules": [{"name": "a", "schedule": {**YEARLY, "target": target}}]}
        with pytest.raises(Refused) as refused:
            client.call(action, {"topic": target, **(header if action[0] == "p" else {})})
        assert refused.value.code == "invalid_argument"
    with pytest.raises(Refused) as refused:
        put(client, cron, loop={**YEARLY, "target": cron})
    assert refused.value.code == "invalid_argument"
    with pytest.raises(Refused) as refused:
        put(client, cron, lost={**YEARLY, "target": "nowhere"})
    assert refused.value.code == "not_found"
    counts = client.call("count", {"topic": cron})["counts"]
    assert not any(counts.values())
