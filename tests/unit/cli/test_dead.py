"""`fasti dead`: see, redrive and purge what failed for good."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def died(shell: Shell) -> None:
    """Three messages: two that a server refused, one without an address."""
    shell.good("produce", "emails", "a", "b", "c")
    reasons = ["connection refused", "no address", "connection refused by peer"]
    with shell.connect() as client, client.consumer("emails", timeout="60s") as consumer:
        for reason, message in zip(reasons, consumer, strict=False):
            message.reject(reason)


def ids(shell: Shell, *more: str) -> list[int]:
    return [row["id"] for row in shell.lines("dead", "list", "emails", *more)]


def test_why_they_died(shell: Shell) -> None:
    shown = shell("dead", "list", "emails", "--payload").out
    assert "no address" in shown
    assert ids(shell) == [1, 2, 3]
    assert ids(shell, "--reason", "refused") == [1, 3]
    assert ids(shell, "--limit", "2") == [1, 2]
    assert "There are more" in shell("dead", "list", "emails", "--limit", "2").out


def test_when_they_died_and_under_which_key(shell: Shell) -> None:
    shell.good("produce", "emails", "d", "--key", "user-7")
    with shell.connect() as client, client.consumer("emails", timeout="60s") as consumer:
        next(iter(consumer)).reject("no luck", wait=True)
    (row,) = shell.lines("dead", "list", "emails", "--key-prefix", "user-")
    assert (row["key"], row["reason"], row["state"]) == ("user-7", "no luck", "dead")
    assert row["died"].endswith("Z")
    assert "died" in shell("dead", "list", "emails").out
    assert len(ids(shell, "--died-from", "-1h")) == 4
    assert ids(shell, "--died-to", "-1h") == []
    assert shell.good("dead", "count", "emails", "--died-to", "-1h")["dead"] == 0
    assert shell.good("dead", "redrive", "emails", "--died-from", "-1h")["ok"] == 4


def test_redrive_by_id_and_by_reason(shell: Shell) -> None:
    one = shell("dead", "redrive", "emails", "--id", "2", "--id", "99", "--json")
    assert one.code == 1
    assert one.json["outcomes"] == {"ok": 1, "not_found": 1}
    assert one.json["failed"][0]["id"] == 99
    assert (
        shell.good("dead", "redrive", "emails", "--reason", "refused", "--delay", "1h")["ok"] == 2
    )
    assert ids(shell) == []
    states = {row["id"]: row["state"] for row in shell.lines("messages", "list", "emails")}
    assert states == {1: "scheduled", 2: "ready", 3: "scheduled"}
    assert "redrive: 0 ok" in shell("dead", "redrive", "emails", "--all").out


def test_purge_asks_first(shell: Shell) -> None:
    refused = shell("dead", "purge", "emails", "--all", stdin="n\n")
    assert refused.code == 1
    assert "3 dead messages" in refused.err
    assert ids(shell) == [1, 2, 3]
    assert shell("dead", "purge", "emails", "--reason", "refused", stdin="y\n").code == 0
    assert ids(shell) == [2]
    assert shell.good("dead", "purge", "emails", "--all", "--yes")["ok"] == 1
    assert "no such messages" in shell("dead", "list", "emails").out


def test_it_must_be_said_which(shell: Shell) -> None:
    assert shell("dead", "redrive", "emails").code == 2
    assert shell("dead", "purge", "emails", "--yes").code == 2
    assert shell("dead", "purge", "emails", "--all", "--id", "1").code == 2


def test_how_many_died_of_what(shell: Shell) -> None:
    counted = shell.good("dead", "count", "emails")
    assert counted["dead"] == 3
    assert {row["reason"]: row["count"] for row in counted["reasons"]} == {
        "connection refused": 1,
        "no address": 1,
        "connection refused by peer": 1,
    }
    assert shell.good("dead", "count", "emails", "--reason", "address")["dead"] == 1
    assert "no address" in shell("dead", "count", "emails").out
    assert "no such messages" in shell("dead", "count", "emails", "--owner", "nobody").out


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    for verb in ("redrive", "purge"):
        assert shell.good("dead", verb, "emails", "--all", "--dry-run")["dead"] == 3
        assert shell.good("dead", verb, "emails", "--id", "2", "--dry-run")["dead"] == 1
    assert ids(shell) == [1, 2, 3]


def test_redrive_to_another_topic(shell: Shell) -> None:
    assert shell("dead", "redrive", "emails", "--all", "--to", "nowhere").code == 12
    shell.good("topics", "create", "by-hand")
    told = shell.good("dead", "redrive", "emails", "--reason", "refused", "--to", "by-hand")
    assert told["ok"] == 2
    assert ids(shell) == [2]
    moved = shell.lines("messages", "list", "by-hand", "--payload")
    assert [row["headers"]["fasti-dead-topic"] for row in moved] == ["emails"] * 2
    told = shell.good("dead", "redrive", "emails", "--id", "2", "--to", "by-hand")
    assert told["outcomes"] == {"ok": 1}


def test_groups_are_for_logs(shell: Shell) -> None:
    assert shell("dead", "list", "emails", "--group", "g").code == 11
    assert shell("dead", "redrive", "emails", "--all", "--group", "g").code == 11
