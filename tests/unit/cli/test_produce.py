"""`fasti produce`: from arguments, stdin and files, and what is said of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fasti.cli.exits import ERROR_EXITS
from tests.unit.cli.rig import Shell


def held(shell: Shell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.lines("messages", "list", "emails", "--payload")
    return found


def test_one_message_with_all_that_it_may_have(shell: Shell) -> None:
    sent = shell.good(
        *("produce", "emails", "hello", "--at", "2100-01-01T00:00+01:00", "--key", "user-7"),
        *("--header", "lang=en", "--header", "a=b=c", "--content-type", "text/plain"),
        *("--owner", "billing"),
    )
    assert sent["sent"] == 1
    assert sent["rows"] == [{"row": 1, "status": "ok", "id": 1, "key": "user-7", "version": 1}]
    (message,) = held(shell)
    assert message["due"] == "2099-12-31T23:00:00.000000Z"
    assert message["headers"] == {"lang": "en", "a": "b=c"}
    kept = {name: message[name] for name in ("payload", "key", "content_type", "owner", "state")}
    assert kept == {
        "payload": "hello",
        "key": "user-7",
        "content_type": "text/plain",
        "owner": "billing",
        "state": "scheduled",
    }


def test_arguments_copies_and_quiet_ids(shell: Shell) -> None:
    answer = shell("produce", "emails", "a", "b", "-n", "3", "--quiet")
    assert answer.code == 0
    assert answer.out.split() == ["1", "2", "3", "4", "5", "6"]
    assert [message["payload"] for message in held(shell)] == ["a", "b"] * 3
    assert "30 messages sent" in shell("produce", "emails", "x", "-n", "30").out


def test_lines_of_stdin(shell: Shell) -> None:
    assert shell.good("produce", "emails", stdin="one\ntwo\n")["sent"] == 2
    assert shell.good("produce", "emails", "-", stdin=b"\xff\n")["sent"] == 1
    assert [message.get("payload") for message in held(shell)] == ["one", "two", None]
    assert held(shell)[2]["payload_base64"] == "/w=="
    assert shell.good("produce", "emails", stdin="")["sent"] == 0


def test_files(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "mail.csv"
    path.write_text("payload,key,delay\nfirst,a,1h\nsecond,b,\n")
    shell.good("produce", "emails", "--file", str(path), "--delay", "2h")
    first, second = held(shell)
    assert (first["payload"], first["key"]) == ("first", "a")
    assert first["due"] < second["due"]
    assert second["state"] == "scheduled"
    shell.good("produce", "emails", "--file", str(path), "--whole")
    assert held(shell)[2]["payload"] == path.read_text()


def test_keys_from_lines_of_json(shell: Shell) -> None:
    lines = '{"user": "a"}\n{"user": "b"}\n'
    shell.good("produce", "emails", "--key-field", "user", "--delay", "1h", stdin=lines)
    assert [message["key"] for message in held(shell)] == ["a", "b"]


def test_a_row_that_was_not_taken_is_named_and_ends_with_1(shell: Shell) -> None:
    lines = "".join(f'{{"user": "u-{n}"}}\n' for n in range(30))
    arguments = ["produce", "emails", "--key-field", "user", "--delay", "1h"]
    assert shell(*arguments, stdin='{"user": "u-7"}\n').code == 0
    answer = shell(*arguments, stdin=lines)
    assert answer.code == 1
    assert "29 messages sent" in answer.out
    assert "row 8: conflict" in answer.err
    few = shell(*arguments, "--json", stdin='{"user": "u-7"}\n')
    assert few.code == 1
    assert (few.json["failed"], few.json["rows"][0]["status"]) == (1, "conflict")
    kept = shell(*arguments, "--on-conflict", "replace", "--json", stdin='{"user": "u-7"}\n')
    assert kept.code == 0
    assert kept.json["rows"][0]["version"] == 2


def test_a_topic_that_is_not_there(shell: Shell) -> None:
    assert shell("produce", "orders", "x").code == ERROR_EXITS["not_found"]
    assert shell("produce", "orders", "x", "--create").code == 0
    assert shell("produce", "orders", "x", "--create").code == 0


def test_a_command_line_that_contradicts_itself_is_refused(shell: Shell) -> None:
    for line in (
        "x --delay 1h --at 2100-01-01T00:00Z",
        "x --at 2100-01-01T00:00",
        "x y --key a",
        "x -n 2 --key a",
        "-n 2",
        "x --file y",
        "x --header lang",
        "--file x --whole --format csv",
        "x --key a --key-field b",
    ):
        assert shell("produce", "emails", *line.split()).code == 2, line
    assert held(shell) == []


def test_several_lines_can_not_have_one_key(shell: Shell) -> None:
    answer = shell("produce", "emails", "--key", "a", stdin="one\ntwo\n")
    assert answer.code == ERROR_EXITS["invalid_argument"]
    assert held(shell) == []
