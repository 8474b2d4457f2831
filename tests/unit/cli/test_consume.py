"""`fasti consume`: what it prints, what it acknowledges, and when it ends."""

from __future__ import annotations

import json

import pytest

from fasti.cli.exits import ERROR_EXITS
from tests.unit.cli.rig import Shell


def counts(shell: Shell) -> dict[str, int]:
    found = shell.good("topics", "describe", "emails")["counts"]
    return {state: count for state, count in found.items() if count}


def test_it_prints_what_is_ready_acknowledges_it_and_ends(shell: Shell) -> None:
    shell.good("produce", "emails", "one", "two")
    shell.good("produce", "emails", "later", "--delay", "1h")
    answer = shell("consume", "emails")
    assert (answer.code, answer.out) == (0, "one\ntwo\n")
    assert counts(shell) == {"scheduled": 1, "done": 2}
    assert shell("consume", "emails").out == ""


def test_at_most_so_many_and_the_rest_stays(shell: Shell) -> None:
    shell.good("produce", "emails", *"abcde")
    assert shell("consume", "emails", "-n", "2").out == "a\nb\n"
    assert counts(shell) == {"ready": 3, "done": 2}
    assert shell("consume", "emails", "-n", "2", "--follow").out == "c\nd\n"
    assert counts(shell) == {"ready": 1, "done": 4}


def test_without_ack_everything_is_given_back_as_if_never_opened(shell: Shell) -> None:
    shell.good("produce", "emails", "one", "two")
    for _ in range(2):
        assert shell("consume", "emails", "--no-ack").out == "one\ntwo\n"
    assert counts(shell) == {"ready": 2}
    assert {row["attempts"] for row in shell.lines("messages", "list", "emails")} == {0}


def test_it_waits_for_what_falls_due_if_it_is_told_to(shell: Shell) -> None:
    shell.good("produce", "emails", "soon", "--delay", "50ms")
    assert shell("consume", "emails", "--timeout", "60s", "-n", "1").out == "soon\n"
    assert shell("consume", "emails", "--timeout", "10ms").out == ""
    nothing = shell("consume", "emails")
    assert (nothing.out, nothing.code) == ("", 0)
    assert "Nothing is ready" in nothing.err


def test_forms(shell: Shell) -> None:
    shell.good("produce", "emails", "--key", "k", "hello")
    shown = shell("consume", "emails", "--no-ack", "--format", "{key}={payload} {attempts}")
    assert shown.out == "k=hello 1\n"
    assert shell("consume", "emails", "--no-ack", "--format", "raw").out == "hello"
    line = shell("consume", "emails", "--json").out
    assert json.loads(line)["payload"] == "hello"
    assert line.count("\n") == 1
    shell.good("produce", "emails", stdin=b"\xff\n")
    assert shell("consume", "emails").out == "base64:/w==\n"


def test_what_it_can_not_do(shell: Shell) -> None:
    group = shell("consume", "emails", "--group", "billing")
    assert group.code == ERROR_EXITS["invalid_argument"]
    assert "'emails' is a timeline" in group.err
    assert shell("consume", "nothing").code == ERROR_EXITS["not_found"]
    assert shell("consume", "nothing", "-f").code == ERROR_EXITS["not_found"]
    assert shell("consume", "emails", "--format", "{nothing}").code == 2


@pytest.mark.parametrize("kind", ["cron", "kv", "log"])
@pytest.mark.parametrize("options", [(), ("-f",)])
def test_what_can_not_be_consumed_says_what_to_do_instead(
    shell: Shell, kind: str, options: tuple[str, ...]
) -> None:
    shell.good("topics", "create", "t", "--kind", kind)
    answer = shell("consume", "t", *options)
    assert answer.code == ERROR_EXITS["invalid_argument"]
    advice = {"cron": "fasti schedules list t", "kv": "`fasti kv`", "log": "--group"}
    assert advice[kind] in " ".join(answer.err.split())
