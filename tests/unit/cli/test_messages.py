"""`fasti messages`: what is shown, the outcome of each change, and the code that follows."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def filled(shell: Shell) -> None:
    shell.good("produce", "emails", "hello", "--delay", "1h", "--key", "a", "--owner", "billing")
    shell.good("produce", "emails", "there", "--delay", "1d", "--key", "b")
    shell.good("produce", "emails", "now")


def test_a_list_for_people_and_for_programs(shell: Shell) -> None:
    listed = shell("messages", "list", "emails").out
    assert "scheduled" in listed
    assert "hello" not in listed
    assert "hello" in shell("messages", "list", "emails", "--payload").out
    found = shell.lines("messages", "list", "emails")
    assert [row["id"] for row in found] == [1, 2, 3]
    assert "payload" not in found[0]
    assert [row["key"] for row in found] == ["a", "b", None]
    assert found[0]["due"].endswith("Z")


def test_brackets_in_a_payload_are_no_markup(shell: Shell) -> None:
    shell.good("produce", "emails", "[bold]x[/bold] [/nothing]", "--key", "[red]k")
    shown = shell("messages", "list", "emails", "--payload").out
    assert "[bold]x[/bold] [/nothing]" in shown
    assert "[red]k" in shown
    assert "[red]k" in shell("messages", "cancel", "emails", "--key", "[red]k").out


def test_filters(shell: Shell) -> None:
    for filters, ids in (
        ("--state ready", [3]),
        ("--state scheduled", [1, 2]),
        ("--state dead", []),
        ("--due-to +2h", [1, 3]),
        ("--due-from +10m", [1, 2]),
        ("--due-from=-1h --due-to +2h", [1, 3]),
        ("--owner billing", [1]),
        ("--limit 2", [1, 2]),
    ):
        found = shell.lines("messages", "list", "emails", *filters.split())
        assert [row["id"] for row in found] == ids, filters


def test_a_list_says_that_there_are_more(shell: Shell) -> None:
    assert "There are more" in shell("messages", "list", "emails", "--limit", "2").out
    assert "There are more" not in shell("messages", "list", "emails", "--limit", "3").out
    assert "no such messages" in shell("messages", "list", "emails", "--state", "leased").out


def test_get(shell: Shell) -> None:
    shown = shell("messages", "get", "emails", "--key", "a")
    assert shown.code == 0
    assert shown.out.rstrip().endswith("hello")
    assert "billing" in shown.out
    both = shell("messages", "get", "emails", "--id", "2", "--id", "99", "--json")
    assert both.code == 1
    assert [row["status"] for row in both.json] == ["ok", "not_found"]
    assert both.json[0]["payload"] == "there"
    missing = shell("messages", "get", "emails", "--key", "nobody")
    assert missing.code == 1
    assert "nobody: not_found" in missing.err


def test_stale_reads_say_as_of_when_they_are(shell: Shell) -> None:
    shown = shell("messages", "get", "emails", "--key", "a", "--stale")
    assert shown.out.rstrip().endswith("hello")
    assert shown.err.startswith("As of ")
    (row,) = shell.good("messages", "get", "emails", "--key", "a", "--stale")
    assert row["as_of"].endswith("Z")
    assert "as_of" not in shell.good("messages", "get", "emails", "--key", "a")[0]
    listed = shell.lines("messages", "list", "emails", "--stale", "--limit", "2")
    assert [row["id"] for row in listed] == [1, 2]
    assert all(row["as_of"] for row in listed)
    table = shell("messages", "list", "emails", "--stale")
    assert table.err.startswith("As of ")
    described = shell.good("topics", "describe", "emails", "--stale")
    assert described["as_of"]
    assert described["counts"] == shell.good("topics", "describe", "emails")["counts"]
    assert shell("topics", "describe", "emails", "--stale").err.startswith("As of ")


def test_update(shell: Shell) -> None:
    changed = shell.good("messages", "update", "emails", "--key", "b", "--payload", "new")
    assert changed == [{"status": "ok", "id": 2, "key": "b", "version": 2}]
    stale = shell(
        *[
            "messages",
            "update",
            "emails",
            "--key",
            "b",
            "--payload",
            "x",
            "--version",
            "1",
            "--json",
        ]
    )
    assert stale.code == 1
    assert (stale.json[0]["status"], stale.json[0]["version"]) == ("conflict", 2)
    assert shell.good("messages", "get", "emails", "--key", "b")[0]["payload"] == "new"
    taken = shell(
        "messages", "update", "emails", "--key", "b", "--payload", "-", stdin=b"from stdin"
    )
    assert taken.code == 0
    assert shell.good("messages", "get", "emails", "--key", "b")[0]["payload"] == "from stdin"


def test_only_its_owner_may_change_a_message(shell: Shell) -> None:
    move = ["messages", "move", "emails", "--key", "a", "--delay", "2d"]
    stranger = shell(*move)
    assert stranger.code == 1
    assert "not_owner" in stranger.out
    assert shell(*move, "--owner", "billing").code == 0


def test_move(shell: Shell) -> None:
    at = "2100-01-01T00:00Z"
    moved = shell.good("messages", "move", "emails", "--id", "2", "--at", at)
    assert moved[0]["status"] == "ok"
    assert shell.good("messages", "get", "emails", "--id", "2")[0]["due"].startswith("2100-01-01")


def test_cancel_several(shell: Shell) -> None:
    answer = shell("messages", "cancel", "emails", "--key", "b", "--key", "nobody", "--json")
    assert answer.code == 1
    assert [(row["key"], row["status"]) for row in answer.json] == [
        ("b", "ok"),
        ("nobody", "not_found"),
    ]
    again = shell("messages", "cancel", "emails", "--id", "2", "--json")
    assert again.code == 1
    assert again.json[0]["status"] == "cancelled"
    assert again.json[0]["at"].endswith("Z")
    for_people = shell("messages", "cancel", "emails", "--id", "2").out
    assert "cancelled" in for_people
    assert [row["id"] for row in shell.lines("messages", "list", "emails")] == [1, 3]


def test_a_command_line_that_makes_no_sense_is_refused(shell: Shell) -> None:
    for line in (
        "get emails",
        "get emails --id 1 --key a",
        "move emails --key a",
        "move emails --key a --delay 1h --at 2100-01-01T00:00Z",
        "move emails --key a --at 2100-01-01T00:00",
        "update emails --key a",
        "update emails --key a --file no-such-file",
        "cancel emails",
        "list emails --state done",
        "list emails --due-to yesterday",
    ):
        assert shell("messages", *line.split()).code == 2, line
