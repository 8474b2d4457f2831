"""`fasti consumers`: who has what, and taking it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fasti
from tests.unit.cli.rig import Shell


@pytest.fixture
def worker(shell: Shell) -> Iterator[fasti.Consumer]:
    """A consumer with two messages in its hands."""
    shell.good("produce", "emails", "a", "--key", "k-1")
    shell.good("produce", "emails", "b", "--key", "k-2")
    with shell.connect() as client, client.consumer("emails", name="w-7", prefetch=2) as consumer:
        held: list[fasti.Message] = []
        while len(held) < 2:
            held += consumer.take(2, timeout="60s")
        yield consumer


def test_nobody_is_there(shell: Shell) -> None:
    assert shell("consumers").out == "There are no consumers.\n"
    assert shell("consumers", "--topic", "emails").out == "emails has no consumers.\n"
    assert shell.good("consumers") == []
    assert shell("consumers", "--topic", "nowhere").code == 12
    assert shell("consumers", "release", "w-7").code == 1


def test_who_has_what(shell: Shell, worker: fasti.Consumer) -> None:
    (row,) = shell.good("consumers")
    assert (row["topic"], row["consumer"], row["leases"]) == ("emails", "w-7", 2)
    assert row["connected"] is True
    assert row["oldest_lease"].endswith("Z")
    assert row["lease_until"] > row["oldest_lease"]
    assert row["idle_s"] >= 0
    for line in (["consumers"], ["consumers", "list"], ["consumers", "--topic", "emails"]):
        shown = shell(*line)
        assert shown.code == 0
        assert "w-7" in shown.out
    assert [
        row["key"] for row in shell.lines("messages", "list", "emails", "--consumer", "w-7")
    ] == [
        "k-1",
        "k-2",
    ]


def test_taken_back(shell: Shell, worker: fasti.Consumer) -> None:
    refused = shell("consumers", "release", "w-7", stdin="n\n")
    assert refused.code == 1
    assert "emails: 2" in refused.err
    assert "still connected" in refused.err
    assert shell.good("consumers")[0]["leases"] == 2
    assert (
        shell("consumers", "release", "w-7", "--topic", "emails", "--yes").out
        == "w-7: 2 released\n"
    )


def test_of_a_group(shell: Shell) -> None:
    shell.good("topics", "create", "events", "--kind", "log")
    shell.good("produce", "events", "a", "b")
    with (
        shell.connect() as client,
        client.consumer("events", group="billing", name="w-8", prefetch=2) as consumer,
    ):
        assert consumer.take(1, timeout="60s")
        (row,) = shell.good("consumers", "--topic", "events")
        assert (row["group"], row["consumer"]) == ("billing", "w-8")
        assert "billing" in shell("consumers").out
        release = ["consumers", "release", "w-8", "--yes", "--json"]
        assert shell(*release, "--group", "other").json == {"consumer": "w-8", "released": 0}
        assert shell(*release, "--group", "billing").json["released"] >= 1


def test_one_message_taken_back(shell: Shell, worker: fasti.Consumer) -> None:
    released = shell("messages", "release", "emails", "--key", "k-1", "--id", "99")
    assert released.code == 2
    by_key = shell.good("messages", "release", "emails", "--key", "k-1")
    assert [(row["key"], row["status"]) for row in by_key] == [("k-1", "ok")]
    missing = shell("messages", "release", "emails", "--id", "99", "--json")
    assert missing.code == 1
    assert missing.json[0]["status"] == "not_found"
    nobody = shell("messages", "release", "emails", "--key", "nobody", "--json")
    assert nobody.code == 1
    assert nobody.json[0] == {"status": "not_found", "id": None, "key": "nobody", "version": None}
