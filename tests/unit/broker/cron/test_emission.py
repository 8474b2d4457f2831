"""The messages that schedules emit."""

from __future__ import annotations

import numpy as np

from fasti.broker.cron.emission import Chunk, Member, one_row
from fasti.core.cron.schedule import Schedule

AT_US = 1_774_746_000_000_000


def chunk_of(*schedules: Schedule) -> Chunk:
    chunk = Chunk()
    for number, schedule in enumerate(schedules):
        chunk.add(Member(number, 1, 0, f"s{number}", schedule))
    chunk.build()
    return chunk


def test_rows_of_all_and_of_some() -> None:
    chunk = chunk_of(
        Schedule("t", cron="@daily", payload=b"a", headers={"x": "1", "y": "2"}),
        Schedule("t", cron="@daily", payload=b"b", content_type="text/plain"),
        Schedule("t", cron="@daily", subject="a.b"),
    )
    rows = chunk.rows(AT_US, None).batch.to_pylist()
    occurrence = ("fasti-occurrence", "2026-03-29T01:00:00Z")
    assert rows == [
        {
            "payload": b"a",
            "content_type": None,
            "subject": None,
            "headers": [("x", "1"), ("y", "2"), ("fasti-schedule", "s0"), occurrence],
        },
        {
            "payload": b"b",
            "content_type": "text/plain",
            "subject": None,
            "headers": [("fasti-schedule", "s1"), occurrence],
        },
        {
            "payload": b"",
            "content_type": None,
            "subject": "a.b",
            "headers": [("fasti-schedule", "s2"), occurrence],
        },
    ]
    some = chunk.rows(AT_US, np.array([2, 0])).batch.to_pylist()
    assert some == [rows[2], rows[0]]


def test_columns_that_nobody_uses_are_left_out() -> None:
    rows = chunk_of(Schedule("t", cron="@daily")).rows(AT_US, None)
    assert rows.batch.schema.names == ["payload", "headers"]


def test_a_header_of_ours_cannot_be_taken() -> None:
    schedule = Schedule(
        "t", cron="@daily", headers={"fasti-schedule": "x", "fasti-occurrence": "y"}
    )
    (row,) = chunk_of(schedule).rows(AT_US, None).batch.to_pylist()
    assert dict(row["headers"]) == {
        "fasti-schedule": "s0",
        "fasti-occurrence": "2026-03-29T01:00:00Z",
    }


def test_templates_are_filled_in_and_others_left_alone() -> None:
    words = b"{{schedule}} {{occurrence}} {{local}} {{date}} {{other}}"
    zone = "Australia/Lord_Howe"
    chunk = chunk_of(
        Schedule("t", cron="@daily", payload=words, template=True, timezone=zone),
        Schedule("t", cron="@daily", payload=words),
    )
    first, second = chunk.rows(AT_US, None).batch.column("payload").to_pylist()
    assert first == (b"s0 2026-03-29T01:00:00Z 2026-03-29T12:00:00+11:00 2026-03-29 {{other}}")
    assert second == words
    fraction = one_row("a", Schedule("t", cron="@daily", payload=words, template=True), 1_500_000)
    assert b"1970-01-01T00:00:01.500000Z" in fraction.batch.column("payload")[0].as_py()


def test_jitter_is_the_same_whenever_it_is_asked_and_differs_by_name_and_time() -> None:
    chunk = chunk_of(*[Schedule("t", every_us=10**6, jitter_us=10**6)] * 200)
    late = chunk.due_us(AT_US) - AT_US
    assert np.array_equal(
        late, chunk_of(*[Schedule("t", cron="@daily", jitter_us=10**6)] * 200).due_us(AT_US) - AT_US
    )
    assert late.min() >= 0
    assert late.max() < 10**6
    assert len(np.unique(late)) > 190
    assert 400_000 < late.mean() < 600_000
    assert not np.array_equal(late, chunk.due_us(AT_US + 60_000_000) - AT_US - 60_000_000)
    assert chunk_of(Schedule("t", cron="@daily")).due_us(AT_US).tolist() == [AT_US]


def test_what_was_fired_is_kept_when_members_come_and_go() -> None:
    schedule = Schedule("t", cron="@daily")
    chunk = chunk_of(schedule, schedule)
    chunk.last_us[:] = [5, 7]
    chunk.add(Member(9, 3, 1, "s9", schedule))
    chunk.remove(0)
    chunk.build()
    assert chunk.numbers.tolist() == [1, 9]
    assert chunk.last_us.tolist() == [7, 1]
    assert chunk.versions.tolist() == [1, 3]
