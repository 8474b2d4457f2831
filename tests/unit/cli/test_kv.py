"""`fasti kv`: values in and out, outcomes as exit codes, tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture
def kv(bare_shell: Shell) -> Shell:
    bare_shell.good("topics", "create", "profiles", "--kind", "kv")
    return bare_shell


def test_a_value_goes_in_and_comes_out(kv: Shell, tmp_path: Path) -> None:
    said = kv("kv", "put", "profiles", "user-7", "hello", "--header", "a=b")
    assert (said.code, said.out) == (0, "'user-7': ok, version 1\n")
    assert kv("kv", "get", "profiles", "user-7").out == "hello"
    found = kv.good("kv", "get", "profiles", "user-7")
    assert (found["value"], found["version"], found["headers"]) == ("hello", 1, {"a": "b"})
    assert found["expires"] is None
    put = kv.good("kv", "put", "profiles", "user-7", stdin=b"\xff\x00")
    assert put == {"status": "ok", "key": "user-7", "version": 2}
    assert kv.good("kv", "get", "profiles", "user-7")["value_base64"] == "/wA="
    (tmp_path / "value").write_bytes(b"from a file")
    kv.good("kv", "put", "profiles", "user-8", "--file", str(tmp_path / "value"))
    assert kv("kv", "get", "profiles", "user-8").out == "from a file"


def test_what_is_not_there_ends_with_one(kv: Shell) -> None:
    said = kv("kv", "get", "profiles", "nobody")
    assert (said.code, said.out) == (1, "")
    assert "profiles has no entry 'nobody'" in said.err
    assert kv("kv", "get", "profiles", "nobody", "--json").json is None
    gone = kv("kv", "delete", "profiles", "nobody")
    assert (gone.code, gone.out) == (1, "'nobody': not_found (there is no such entry)\n")


def test_a_stale_value_says_as_of_when_it_is(kv: Shell) -> None:
    kv.good("kv", "put", "profiles", "user-7", "hello")
    said = kv("kv", "get", "profiles", "user-7", "--stale")
    assert said.out == "hello"
    assert said.err.startswith("As of ")
    found = kv.good("kv", "get", "profiles", "user-7", "--stale")
    assert (found["value"], found["as_of"][-1]) == ("hello", "Z")
    assert kv("kv", "get", "profiles", "nobody", "--stale").code == 1


def test_versions(kv: Shell) -> None:
    assert kv("kv", "put", "profiles", "k", "1", "--version", "0").code == 0
    said = kv("kv", "put", "profiles", "k", "2", "--version", "0", "--json")
    assert (said.code, said.json) == (1, {"status": "conflict", "key": "k", "version": 1})
    assert kv("kv", "delete", "profiles", "k", "--version", "7").code == 1
    assert kv("kv", "delete", "profiles", "k", "--version", "1").code == 0


def test_listing(kv: Shell) -> None:
    assert "no such entries" in kv("kv", "list", "profiles").out
    kv("kv", "put", "profiles", "user-1", "a\x1b[31m", "--ttl", "1h")
    kv("kv", "put", "profiles", "user-1", "b", "-c", "2026-05-01")
    kv("kv", "put", "profiles", "user-2", "c")
    kv("kv", "put", "profiles", "zebra", "d")
    shown = kv("kv", "list", "profiles", "-n", "3").out
    assert "clustering" in shown
    # Nothing in a value steers the terminal.
    assert "\x1b" not in shown
    assert "There are more: these are the first 3." in shown
    found = kv.lines("kv", "list", "profiles", "--prefix", "user-")
    assert [(entry["key"], entry["clustering"]) for entry in found] == [
        ("user-1", None),
        ("user-1", "2026-05-01"),
        ("user-2", None),
    ]
    assert found[0]["expires"].endswith("Z")
    assert len(kv.lines("kv", "list", "profiles", "--key", "user-1")) == 2
    ranged = kv.lines("kv", "list", "profiles", "--from", "user-2", "--to", "zebra")
    assert [entry["value"] for entry in ranged] == ["c"]
    assert kv("kv", "list", "profiles", "--prefix", "a", "--from", "b").code == 2


def test_watching(kv: Shell) -> None:
    position = str(kv.connect().kv("profiles").position())
    kv("kv", "put", "profiles", "user-1", "a")
    kv("kv", "put", "profiles", "other", "b")
    kv("kv", "delete", "profiles", "user-1")
    said = kv("kv", "watch", "profiles", "--position", position, "-n", "3", "--timeout", "60s")
    assert said.out.splitlines() == ["put user-1 a", "put other b", "delete user-1"]
    narrow = kv(
        *("kv", "watch", "profiles", "--position", position, "--prefix", "user-"),
        *("-n", "2", "--timeout", "60s", "--json"),
    )
    told = [json.loads(line) for line in narrow.out.splitlines()]
    assert [(each["op"], each["key"]) for each in told] == [("put", "user-1"), ("delete", "user-1")]
    assert told[0]["value"] == "a"
    assert "value" not in told[1]


def test_another_kind_is_refused(kv: Shell) -> None:
    kv.good("topics", "create", "emails")
    said = kv("kv", "get", "emails", "a")
    assert said.code not in (0, 1)
    assert "timeline" in said.err
