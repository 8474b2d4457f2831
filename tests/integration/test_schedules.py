"""Schedules in a broker with virtual time: days pass in milliseconds, every occurrence comes once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fasti import aio
from fasti.broker.caller import EMBEDDED
from fasti.client.client import Client
from fasti.client.schedules import Occurrence
from fasti.core.cron.commands import PutSchedules
from fasti.errors import InvalidArgument, NotFound
from fasti.testing.virtual import VirtualBroker


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker(datetime(2026, 3, 27, 12, tzinfo=UTC)) as broker:
        client = broker.client()
        client.create_topic("emails")
        client.create_topic("reports", kind="cron")
        yield broker


def taken(client: Client, topic: str = "emails", ack: bool = True) -> list[Any]:
    """All that is due, finished."""
    ready = client.messages(topic).count()["ready"]
    found = []
    if ready:
        with client.consumer(topic, prefetch=max(ready, 1)) as consumer:
            for message in consumer:
                found.append(message)
                if ack:
                    message.ack()
                if len(found) == ready:
                    break
    return found


def occurrences(messages: list[Any]) -> list[str]:
    return [message.headers["fasti-occurrence"] for message in messages]


def test_three_days_fire_every_occurrence_once(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    made = reports.put(
        "daily",
        cron="30 2 * * *",
        timezone="Europe/Paris",
        target="emails",
        payload="the report of {{date}}",
        template=True,
        headers={"lang": "fr"},
        content_type="text/plain",
    )
    assert (made.status, made.version) == ("ok", 1)
    broker.advance("3d")
    messages = taken(client)
    # On 29 March there is no 02:30 in Paris.
    assert occurrences(messages) == [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z",
    ]
    first = messages[0]
    assert first.payload == b"the report of 2026-03-28"
    assert first.headers["lang"] == "fr"
    assert first.headers["fasti-schedule"] == "daily"
    assert first.content_type == "text/plain"
    assert first.due == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    broker.advance("1d")
    assert occurrences(taken(client)) == ["2026-03-31T00:30:00Z"]
    known = reports.get("daily")
    assert known.fired == 4
    assert known.skipped == 0
    assert known.last == datetime(2026, 3, 31, 0, 30, tzinfo=UTC)
    assert known.next is not None
    assert known.next.at == datetime(2026, 4, 1, 0, 30, tzinfo=UTC)


def test_pause_resume_run_now_and_delete(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    reports.put("often", every="1m", target="emails", payload=b"x")
    broker.advance("2m")
    assert len(taken(client)) == 2
    assert reports.pause("often")
    assert not reports.pause("often")
    assert reports.get("often").next is None
    broker.advance("1h")
    assert taken(client) == []
    outcome = reports.run_now("often")
    assert outcome.ok
    assert client.messages("emails").get(id=outcome.id) is not None
    assert len(taken(client)) == 1
    assert reports.resume("often")
    assert not reports.resume("often")
    broker.advance("3m")
    assert len(taken(client)) == 3
    # What is emitted ahead goes with the schedule.
    broker.advance("55s")
    assert client.messages("emails").count()["scheduled"] == 1
    reports.delete("often")
    assert client.messages("emails").count()["scheduled"] == 0
    broker.advance("1h")
    assert taken(client) == []
    for call in (reports.get, reports.delete, reports.pause, reports.run_now, reports.preview):
        with pytest.raises(NotFound, match="often"):
            call("often")


def test_a_changed_schedule_takes_back_what_it_has_emitted_ahead(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    reports.put("often", every="1m", target="emails", payload=b"old")
    broker.advance("55s")
    assert client.messages("emails").count()["scheduled"] == 1
    again = reports.put("often", every="1m", target="emails", payload=b"old")
    assert (again.status, again.version) == ("ok", 1)
    changed = reports.put("often", every="1m", target="emails", payload=b"new", version=1)
    assert (changed.status, changed.version) == ("ok", 2)
    assert reports.put("often", every="2m", target="emails", version=1).status == "conflict"
    assert reports.put("often", every="2m", target="emails", version=0).status == "conflict"
    broker.advance("1m")
    assert [message.payload for message in taken(client)] == [b"new"]


def test_overlap(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    for name in ("allow", "skip", "cancel"):
        client.create_topic(name)
        reports.put(name, every="1m", target=name, overlap=name)
    broker.advance("5m")
    assert len(taken(client, "allow")) == 5
    # The first one waits: the others are passed over.
    assert occurrences(taken(client, "skip")) == ["2026-03-27T12:01:00Z"]
    # Each one takes the place of the one before it.
    assert occurrences(taken(client, "cancel")) == ["2026-03-27T12:05:00Z"]
    assert reports.get("skip").skipped == 4
    broker.advance("1m")
    assert occurrences(taken(client, "skip")) == ["2026-03-27T12:06:00Z"]
    broker.advance("1m")
    assert reports.run_now("skip").status == "conflict"
    assert reports.run_now("cancel").ok
    assert len(taken(client, "cancel")) == 1


def test_start_end_and_jitter(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    now = broker.now
    reports.put(
        "bounded",
        every="10m",
        start=now + timedelta(minutes=5),
        end=now + timedelta(minutes=25),
        target="emails",
    )
    broker.advance("2h")
    minutes = [(message.due - now).total_seconds() / 60 for message in taken(client)]
    assert minutes == [5, 15, 25]
    assert reports.get("bounded").next is None
    names = [f"jittered-{n}" for n in range(20)]
    definition = {"every": "1h", "target": "emails", "jitter": "30m"}
    assert all(each.ok for each in reports.put_many(dict.fromkeys(names, definition)))
    broker.advance("1h30m")
    messages = taken(client)
    hour = broker.now - timedelta(minutes=30)
    late = [(message.due - hour).total_seconds() for message in messages]
    assert len(messages) == 20
    assert all(0 <= each < 1800 for each in late)
    assert len(set(late)) > 10
    assert set(occurrences(messages)) == {hour.strftime("%Y-%m-%dT%H:%M:%SZ")}


def test_a_schedule_of_many_sizes_and_its_list(broker: VirtualBroker) -> None:
    reports = broker.client().schedules("reports")
    definition = {"cron": "0 9 * * MON", "timezone": "Asia/Tokyo", "target": "emails"}
    reports.put_many({f"s{n:04}": definition for n in range(1_203)})
    found = reports.list()
    assert [each.name for each in found] == [f"s{n:04}" for n in range(1_203)]
    assert found[7].arguments() == definition
    assert found[7].next == Occurrence(
        datetime(2026, 3, 30, 0, tzinfo=UTC), datetime.fromisoformat("2026-03-30T09:00+09:00")
    )


def test_preview_of_a_name_and_of_a_definition(broker: VirtualBroker) -> None:
    reports = broker.client().schedules("reports")
    reports.put("daily", cron="30 2 * * *", timezone="Europe/Paris", target="emails")
    named = reports.preview("daily", 3)
    given = reports.preview(count=3, cron="30 2 * * *", timezone="Europe/Paris")
    assert named == given
    assert [each.local.isoformat() for each in named] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert named[0].at == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    later = reports.preview("daily", 1, after=datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert later[0].local.isoformat() == "2026-10-25T02:30:00+02:00"


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "* * * * *", "every": "1m"}, "cron"),
        ({}, "cron"),
        ({"every": "1ms"}, "every"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"cron": "* * * * *", "misfire": "never"}, "misfire"),
        ({"cron": "* * * * *", "overlap": "maybe"}, "overlap"),
        ({"cron": "* * * * *", "gap": "both"}, "gap"),
        ({"cron": "* * * * *", "fold": "skip"}, "fold"),
        ({"cron": "* * * * *", "misfire_max": 0}, "misfire_max"),
        ({"cron": "* * * * *", "payload": b"x" * 70_000}, "schedule_bytes_max"),
        ({"cron": "* * * * *", "headers": {"a": "x" * 20_000}}, "headers_bytes_max"),
        ({"cron": "* * * * *", "subject": "not a subject"}, "subject"),
        ({"cron": "* * * * *", "colour": "red"}, "colour"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    broker: VirtualBroker, definition: dict[str, Any], field: str
) -> None:
    reports = broker.client().schedules("reports")
    with pytest.raises(InvalidArgument) as refused:
        reports.put_many(
            {"good": {"every": "1m", "target": "emails"}, "bad": {**definition, "target": "emails"}}
        )
    assert refused.value.field == field
    assert reports.list() == []


def test_targets(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    with pytest.raises(NotFound, match="nowhere"):
        reports.put("lost", every="1m", target="nowhere")
    with pytest.raises(InvalidArgument, match="reports"):
        reports.put("circular", every="1m", target="reports")
    with pytest.raises(InvalidArgument, match="timeline"):
        client.schedules("emails").list()
    client.create_topic("urgent", kind="priority")
    reports.put("late", every="1m", target="urgent", payload=b"late", priority=9)
    reports.put("soon", every="1m", target="urgent", payload=b"soon", priority=1)
    broker.advance("1m")
    assert [message.payload for message in taken(client, "urgent")] == [b"soon", b"late"]


def test_a_target_that_comes_back_gets_what_the_misfire_policy_says(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    reports.put("often", every="1m", target="emails", misfire="once")
    broker.advance("1m")
    client.delete_topic("emails")
    broker.advance("10m")
    client.create_topic("emails")
    broker.advance("1m")
    found = occurrences(taken(client))
    # One for all that were missed, and those that came after it.
    assert found == sorted(set(found))
    assert 2 <= len(found) <= 3
    assert found[-1] == "2026-03-27T12:12:00Z"


def test_deleting_a_cron_topic_takes_back_what_it_has_emitted_ahead(broker: VirtualBroker) -> None:
    client = broker.client()
    client.schedules("reports").put("often", every="1m", target="emails")
    broker.advance("55s")
    assert client.messages("emails").count()["scheduled"] == 1
    client.delete_topic("reports")
    assert client.messages("emails").count()["scheduled"] == 0
    broker.advance("1h")
    assert client.messages("emails").count()["ready"] == 0
    # A new topic of the name begins without them.
    client.create_topic("reports", kind="cron")
    assert client.schedules("reports").list() == []


def test_one_that_means_nothing_any_more_holds_nothing_up(broker: VirtualBroker) -> None:
    """A zone may leave the database, and a newer broker may write what an older one can't read."""
    client = broker.client()
    reports = client.schedules("reports")
    strange = [
        ("zone", '{"cron":"* * * * *","target":"emails","timezone":"Atlantis/Capital"}'),
        ("newer", '{"cron":"* * * * *","target":"emails","moon":"full"}'),
    ]
    assert broker.shard.call(PutSchedules("reports", strange)).error is None
    reports.put("good", cron="* * * * *", target="emails")
    broker.advance("2m")
    assert [message.headers["fasti-schedule"] for message in taken(client)] == ["good"] * 2
    assert reports.get("zone").next is None
    reports.delete("zone")
    reports.delete("newer")


def test_many_timings_and_zones(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    zones = ["UTC", "Europe/Paris", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"]
    definitions = {
        f"{zone}-{minute}": {"cron": f"{minute} * * * *", "timezone": zone, "target": "emails"}
        for zone in zones
        for minute in range(60)
    }
    reports.put_many(definitions)
    broker.advance("2h")
    found = Counter(message.headers["fasti-schedule"] for message in taken(client))
    assert found == dict.fromkeys(definitions, 2)


def test_from_an_event_loop(broker: VirtualBroker) -> None:
    async def story() -> None:
        async with aio.Client(broker.client()) as client:
            reports = client.schedules("reports")
            assert (await reports.put("often", every="1m", target="emails")).ok
            assert [each.name for each in await reports.list()] == ["often"]
            assert len(await reports.preview("often", 3)) == 3
            assert await reports.pause("often")
            assert await reports.resume("often")
            assert (await reports.run_now("often")).ok
            assert (await reports.get("often")).fired == 1
            await reports.delete("often")
            assert await reports.list() == []

    asyncio.run(story())


def test_metrics_count_what_schedules_did(broker: VirtualBroker) -> None:
    client = broker.client()
    reports = client.schedules("reports")
    reports.put("often", every="1m", target="emails", overlap="skip")
    reports.put("resting", every="1m", target="emails")
    reports.pause("resting")
    broker.advance("3m")
    text = broker.service.call(EMBEDDED, "metrics", {"version": 1})[0]["text"]
    assert 'fasti_schedules{state="active",topic="reports"} 1.0' in text
    assert 'fasti_schedules{state="paused",topic="reports"} 1.0' in text
    assert 'fasti_schedule_fired_total{topic="reports"} 1.0' in text
    assert 'fasti_schedule_skipped_total{topic="reports"} 2.0' in text
    assert "fasti_schedule_late_seconds_count" in text
