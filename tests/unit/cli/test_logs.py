"""`fasti log`, `fasti groups`, and logs with `fasti produce` and `fasti consume`."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture
def events(shell: Shell) -> Shell:
    """A log of two partitions with three rows each, told by their places."""
    shell.good("topics", "create", "events", "--kind", "log", "--partitions", "2")
    for partition in ("0", "1"):
        payloads = [f"{partition}/{offset}" for offset in range(3)]
        sent = shell.good("produce", "events", *payloads, "--partition", partition)
        assert sent["sent"] == 3
    return shell


def lines(shell: Shell, *arguments: str) -> list[str]:
    answer = shell(*arguments)
    assert answer.code == 0, answer
    return answer.out.splitlines()


def test_describe_tells_where_partitions_begin_and_end(events: Shell) -> None:
    found = events.good("log", "describe", "events")
    assert [(p["partition"], p["earliest"], p["end"], p["rows"]) for p in found["partitions"]] == [
        (0, 0, 3, 3),
        (1, 0, 3, 3),
    ]
    assert "earliest" in events("log", "describe", "events").out


def test_read_prints_rows_in_order(events: Shell) -> None:
    everything = [f"{p}/{offset}" for p in range(2) for offset in range(3)]
    assert lines(events, "log", "read", "events") == everything
    assert lines(events, "log", "read", "events", "--from", "latest") == []
    assert lines(events, "log", "read", "events", "-p", "1", "--from", "2") == ["1/2"]
    assert lines(events, "log", "read", "events", "-n", "2") == everything[:2]
    assert lines(events, "log", "read", "events", "--from", "-1h") == everything
    assert lines(events, "log", "read", "events", "--from", "2020-01-01T00:00Z") == everything
    template = "{partition}:{offset}={payload}"
    assert lines(events, "log", "read", "events", "-n", "1", "--format", template) == ["0:0=0/0"]
    (row,) = map(json.loads, lines(events, "log", "read", "events", "-n", "1", "--json"))
    assert (row["partition"], row["offset"], row["payload"]) == (0, 0, "0/0")


def test_read_follows(events: Shell) -> None:
    follow = ("log", "read", "events", "-f", "--timeout", "60s")
    everything = [f"{p}/{n}" for p in range(2) for n in range(3)]
    assert sorted(lines(events, *follow, "-n", "6")) == everything
    assert lines(events, *follow, "-n", "1") == ["0/0"]
    assert lines(events, "log", "read", "events", "-f", "--timeout", "1ms", "--from", "end") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "somewhere"),
        ("--from", "2026-01-01"),
        ("--format", "{nothing}"),
        ("--format", "{attempts}"),
    ],
)
def test_read_refuses_what_it_can_not_understand(events: Shell, arguments: tuple[str, ...]) -> None:
    answer = events("log", "read", "events", *arguments)
    assert answer.code == 2
    assert arguments[0].lstrip("-") in answer.err or arguments[1] in answer.err


def test_read_says_what_is_wrong_with_an_offset(events: Shell) -> None:
    answer = events("log", "read", "events", "-p", "0", "--from", "9")
    assert answer.code != 0
    assert "offset 9" in answer.err


def test_truncate_drops_rows(events: Shell) -> None:
    found = events.good("log", "truncate", "events", "--before", "2", "-p", "0", "--yes")
    assert [p["earliest"] for p in found["partitions"]] == [2, 0]
    answer = events("log", "truncate", "events", "--before", "1", "-p", "1")
    assert answer.code == 1, "nobody said yes"
    found = events.good("log", "truncate", "events", "--before", "end", "--yes")
    assert [p["rows"] for p in found["partitions"]] == [0, 0]
    assert events("log", "truncate", "events", "--before", "earliest", "--yes").code == 2


def test_consume_by_a_group(events: Shell) -> None:
    got = lines(events, "consume", "events", "--group", "billing", "-n", "2")
    got += lines(events, "consume", "events", "--group", "billing")
    assert sorted(got) == [f"{p}/{n}" for p in range(2) for n in range(3)]
    assert lines(events, "consume", "events", "--group", "billing") == []
    for arguments in ((), ("-f", "--timeout", "60s")):
        answer = events("consume", "events", *arguments)
        assert answer.code == 11
        assert "group" in answer.err
    (first, *_) = lines(events, "consume", "events", "--group", "other", "-n", "1", "--json")
    assert {"partition", "offset"} <= json.loads(first).keys()


def test_groups_are_listed_described_made_reset_and_deleted(events: Shell) -> None:
    assert events.good("groups", "list", "events") == []
    assert "no groups" in events("groups", "list", "events").out
    made = events.good("groups", "create", "events", "tail", "--start", "latest", "--ordered")
    assert (made["lag"], made["ordered"]) == (0, True)
    assert events("groups", "create", "events", "tail").code != 0
    assert events("groups", "create", "events", "other", "--start", "7").code == 2
    assert "tail" in events("groups", "list", "events").out
    reset = ("groups", "reset", "events", "tail", "--yes")
    assert events.good(*reset, "--to", "1", "--partition", "0")["lag"] == 2
    assert events.good(*reset, "--to", "earliest")["lag"] == 6
    assert events("groups", "reset", "events", "tail", "--to", "latest").code == 1
    found = events.good("groups", "describe", "events", "tail")
    assert [p["committed"] for p in found["partitions"]] == [0, 0]
    told = events("groups", "describe", "events", "tail").out
    assert "lag 6" in told
    assert "in order per key" in told
    assert events.good("groups", "delete", "events", "tail", "--yes")["deleted"] is True
    assert events("groups", "describe", "events", "tail").code != 0


def test_dead_rows_of_a_group(events: Shell) -> None:
    with events.connect() as client:
        with client.consumer("events", group="billing", timeout="60s") as consumer:
            for _ in range(6):
                message = next(consumer)
                if message.offset == 1:
                    message.reject("broken")
                else:
                    message.ack()
    found = events.lines("groups", "dead", "events", "billing", "--payload")
    assert sorted(row["payload"] for row in found) == ["0/1", "1/1"]
    assert {row["reason"] for row in found} == {"broken"}
    assert events.lines("groups", "dead", "events", "billing", "--reason", "else") == []
    assert "broken" in events("groups", "dead", "events", "billing").out
    assert "these are the first 1" in events("groups", "dead", "events", "billing", "-n", "1").out
    assert events("groups", "dead", "events", "nobody").code != 0
