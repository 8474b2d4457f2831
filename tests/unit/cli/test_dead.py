"""`fasti dead`: see, redrive and purge what failed for good."""

from __future__ import annotations

import pytest
from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def died(shell: Shell) -> None:
    """Three messages: two that a server refused, one without an address."""
    shell.good("produce", "emails", "a", "b", "c")
    reasons = ["connection refused", "no address", "connection refused by peer"]
    with shell.connect() as client, client.consumer("emails", timeout="10s") as consumer:
        for reason, message in zip(reasons, consumer, strict=False):
            message.reject(reason)


def ids(shell: Shell, *more: str) -> list[int]:
    return [row["id"] for row in shell.good("dead", "list", "emails", *more)]


def test_why_they_died(shell: Shell) -> None:
    shown = shell("dead", "list", "emails", "--payload").out
    assert "no address" in shown
    assert ids(shell) == [1, 2, 3]
    assert ids(shell, "--reason", "refused") == [1, 3]
    assert ids(shell, "--limit", "2") == [1, 2]
    assert "There are more" in shell("dead", "list", "emails", "--limit", "2").out


def test_redrive_by_id_and_by_reason(shell: Shell) -> None:
    one = shell("dead", "redrive", "emails", "--id", "2", "--id", "99", "--json")
    assert one.code == 1
    assert one.json["outcomes"] == {"ok": 1, "not_found": 1}
    assert one.json["failed"][0]["id"] == 99
    assert (
        shell.good("dead", "redrive", "emails", "--reason", "refused", "--delay", "1h")["ok"] == 2
    )
    assert ids(shell) == []
    states = {row["id"]: row["state"] for row in shell.good("messages", "list", "emails")}
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
