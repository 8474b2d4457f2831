"""`fasti changes`: the life of one message, by key and by id."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def lived(shell: Shell) -> None:
    for key in ("user-7", "user-8"):
        shell.good("produce", "emails", "x", "--delay", "1h", "--key", key)
    shell.good("messages", "move", "emails", "--key", "user-7", "--delay", "2h")
    shell.good("messages", "cancel", "emails", "--key", "user-7")
    shell.good("produce", "emails", "y", "--delay", "1h", "--key", "user-7")


def test_by_key(shell: Shell) -> None:
    rows = shell.lines("changes", "--topic", "emails", "--key", "user-7")
    assert [(row["id"], row["op"]) for row in rows] == [
        (1, "produced"),
        (1, "moved"),
        (1, "cancelled"),
        (3, "produced"),
    ]
    shown = shell("changes", "--key", "user-7").out
    assert len(shown.splitlines()) == 4
    assert "user-8" not in shown
    assert shell.lines("changes", "--key", "nobody") == []


def test_by_id(shell: Shell) -> None:
    rows = shell.lines("changes", "--id", "1", "--id", "2")
    assert [(row["id"], row["op"]) for row in rows] == [
        (1, "produced"),
        (2, "produced"),
        (1, "moved"),
        (1, "cancelled"),
    ]
    first = shell.lines("changes", "--id", "1", "-n", "1")
    assert [row["op"] for row in first] == ["produced"]
    # From the position that a line told it goes on.
    rest = shell.lines("changes", "--id", "1", "--from", first[0]["position"])
    assert [row["op"] for row in rest] == ["moved", "cancelled"]
    assert shell("changes", "--key", "").code == 11
