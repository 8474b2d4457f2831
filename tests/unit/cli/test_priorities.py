"""Priorities on the command line: given, shown, changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasti.cli.exits import ERROR_EXITS
from tests.unit.cli.rig import Shell


@pytest.fixture
def tickets(bare_shell: Shell) -> Shell:
    made = bare_shell.good("topics", "create", "tickets", "--kind", "priority", "--age-step", "1m")
    assert made["settings"]["age_step_us"] == 60_000_000
    return bare_shell


def test_from_sending_to_consuming(tickets: Shell, tmp_path: Path) -> None:
    tickets.good("produce", "tickets", "sweep", "--priority", "5", "--key", "sweep")
    tickets.good("produce", "tickets", "fire", "--priority", "0")
    rows = tmp_path / "rows.csv"
    rows.write_text("payload,priority\nown,2\nnext,3\n")
    tickets.good("produce", "tickets", "--file", str(rows), "--priority", "9")
    changed = tickets.good("messages", "update", "tickets", "--key", "sweep", "--priority", "1")
    assert [(row["status"], row["version"]) for row in changed] == [("ok", 2)]
    listed = tickets.lines("messages", "list", "tickets", "--payload")
    assert [(row["payload"], row["priority"]) for row in listed] == [
        ("sweep", 1),
        ("fire", 0),
        ("own", 2),
        ("next", 3),
    ]
    assert "priority" in tickets("messages", "list", "tickets").out
    assert "priority" in tickets("messages", "get", "tickets", "--key", "sweep").out
    shown = tickets("consume", "tickets", "--format", "{priority}:{payload}", "-n", "3").out
    assert shown.split() == ["0:fire", "1:sweep", "2:own"]
    assert '"priority": 3' in tickets("consume", "tickets", "--json").out


def test_a_payload_and_a_priority_together(tickets: Shell) -> None:
    tickets.good("produce", "tickets", "a", "--key", "a", "--priority", "5", "--delay", "1h")
    both = ("--payload", "b", "--priority", "4", "--header", "x=1")
    tickets.good("messages", "update", "tickets", "--key", "a", *both)
    (row,) = tickets.good("messages", "get", "tickets", "--key", "a")
    assert (row["payload"], row["priority"], row["version"]) == ("b", 4, 2)


def test_what_is_none(tickets: Shell) -> None:
    for wrong in ("-1", "65536", "high"):
        assert tickets("produce", "tickets", "x", "--priority", wrong).code == 2
    tickets.good("produce", "tickets", "x", "--key", "k", "--delay", "1h")
    alone = ("messages", "update", "tickets", "--key", "k")
    assert tickets(*alone, "--priority", "1", "--header", "a=b").code == 2
    assert tickets(*alone).code == 2
    tickets.good("topics", "create", "plain")
    refused = tickets("produce", "plain", "x", "--priority", "1")
    assert refused.code == ERROR_EXITS["invalid_argument"]
    assert "no priority" in refused.err
    step = ("topics", "create", "other", "--age-step", "1m")
    assert tickets(*step).code == ERROR_EXITS["invalid_argument"]
    assert tickets("topics", "update", "tickets", "--age-step", "2m").code != 0


def test_other_topics_show_none(bare_shell: Shell) -> None:
    bare_shell.good("topics", "create", "plain")
    bare_shell.good("produce", "plain", "x", "--key", "k", "--delay", "1h")
    assert "priority" not in bare_shell("messages", "list", "plain").out
    assert "priority" not in bare_shell("messages", "get", "plain", "--key", "k").out
