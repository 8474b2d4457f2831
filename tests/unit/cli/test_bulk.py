"""`fasti messages cancel|move` by filter: counted, asked for, told; lists in pages and in lines."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def filled(shell: Shell) -> None:
    for name, delay in (("cart-1", "1h"), ("cart-2", "2h"), ("user-1", "3h")):
        shell.good("produce", "emails", name, "--delay", delay, "--key", name)
    shell.good(
        "produce", "emails", "mine", "--delay", "9h", "--key", "cart-3", "--owner", "billing"
    )


def keys(shell: Shell, *more: str) -> list[str]:
    return [row["key"] for row in shell.lines("messages", "list", "emails", *more)]


def test_a_list_in_pages(shell: Shell) -> None:
    shown = shell("messages", "list", "emails", "--key-prefix", "cart-", "--limit", "2").out
    assert "`--after 2` goes on" in shown
    assert keys(shell, "--key-prefix", "cart-", "--after", "2") == ["cart-3"]
    assert keys(shell, "--limit", "1", "--after", "1") == ["cart-2"]
    assert "goes on" not in shell("messages", "list", "emails", "--after", "2").out
    with_payload = shell.lines("messages", "list", "emails", "--payload", "--limit", "1")
    assert with_payload[0]["payload"] == "cart-1"
    assert "payload" not in shell.lines("messages", "list", "emails", "--no-payload")[0]


def test_json_has_all_a_table_the_first(shell: Shell) -> None:
    shell.good("produce", "emails", "x", "-n", "100", "--delay", "1d")
    assert len(keys(shell)) == 104
    assert "the first 50" in shell("messages", "list", "emails").out
    assert len(shell("messages", "list", "emails", "--json").out.splitlines()) == 104


def test_dry_run_tells_and_changes_nothing(shell: Shell) -> None:
    told = shell("messages", "cancel", "emails", "--key-prefix", "cart-", "--dry-run", "--json")
    # The code that the command itself would end with.
    assert told.code == 1
    assert told.json["outcomes"] == {"ok": 2, "not_owner": 1}
    assert told.json["dry_run"] is True
    assert len(keys(shell)) == 4
    shown = shell("messages", "cancel", "emails", "--due-to", "+90m", "--dry-run")
    assert (shown.code, shown.out) == (0, "cancel (dry run): 1 ok\n")


def test_it_asks_first(shell: Shell) -> None:
    refused = shell("messages", "cancel", "emails", "--key-prefix", "cart-", stdin="n\n")
    assert refused.code == 1
    assert "Cancel 2 messages of emails, 1 answer not_owner?" in refused.err
    assert len(keys(shell)) == 4
    # A script that doesn't say yes is not taken for one that does.
    assert shell("messages", "cancel", "emails", "--all", stdin="").code == 1
    assert len(keys(shell)) == 4
    done = shell("messages", "cancel", "emails", "--key-prefix", "cart-", stdin="y\n")
    assert done.code == 1
    assert "cancel: 2 ok" in done.out
    assert "1 not_owner: 4" in done.err
    assert keys(shell) == ["user-1", "cart-3"]


def test_an_owner_is_meant_and_named(shell: Shell) -> None:
    done = shell.good("messages", "cancel", "emails", "--all", "--owner", "billing", "--yes")
    assert done == {"ok": 1, "outcomes": {"ok": 1}, "failed": []}
    assert keys(shell) == ["cart-1", "cart-2", "user-1"]


def test_move_by_filter(shell: Shell) -> None:
    before = {row["key"]: row["due"] for row in shell.lines("messages", "list", "emails")}
    moved = shell.good("messages", "move", "emails", "--due-to", "+150m", "--by", "1d", "--yes")
    assert moved["outcomes"] == {"ok": 2}
    after = {row["key"]: row["due"] for row in shell.lines("messages", "list", "emails")}
    assert {key for key in before if before[key] != after[key]} == {"cart-1", "cart-2"}
    at = "2100-01-01T00:00Z"
    move = ["messages", "move", "emails", "--key-prefix", "user-", "--at", at]
    assert shell(*move, stdin="y\n").code == 0
    (user,) = shell.lines("messages", "list", "emails", "--key-prefix", "user-")
    assert user["due"].startswith("2100-01-01")


def test_nothing_fits(shell: Shell) -> None:
    found = shell("messages", "cancel", "emails", "--key-prefix", "nobody-")
    assert (found.code, found.out) == (0, "cancel: 0 ok\n")
    assert "no such messages" in found.err


def test_a_command_line_that_makes_no_sense_is_refused(shell: Shell) -> None:
    for line in (
        "cancel emails --owner billing",
        "cancel emails --id 1 --all",
        "cancel emails --key a --key-prefix a",
        "cancel emails --all --version 1 --yes",
        "cancel emails --state dead --yes",
        "move emails --all --yes",
        "move emails --all --by 1h --delay 1h --yes",
        "move emails --key cart-1 --by 1h",
    ):
        answer = shell("messages", *line.split())
        assert answer.code == 2, (line, answer)
    assert shell("messages", "move", "emails", "--all", "--by", "soon", "--yes").code == 11
    assert len(keys(shell)) == 4
