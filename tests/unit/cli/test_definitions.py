"""`fasti topics export` and `apply`: one file says what there should be, and again changes nothing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fasti.cli.exits import ERROR_EXITS
from tests.unit.cli.rig import Shell

FULL = """
version = 1

[topics.emails]
lease = "1m"
max_attempts = 3
retry = { base = "250ms", factor = 3.0 }

[topics.tickets]
kind = "priority"
age_step = "30s"

[topics.orders]
kind = "log"
partitions = 4
segment_age = "7d"

[[topics.orders.bindings]]
pattern = "orders.*.created"
target = "emails"

[topics.reports]
kind = "cron"

[topics.reports.schedules.daily]
cron = "0 9 * * *"
timezone = "Europe/Paris"
target = "emails"
payload = "the daily report"
headers = { lang = "fr" }
start = 2026-01-01T00:00:00Z

[topics.reports.schedules.ping]
every = "90s"
target = "tickets"
payload_base64 = "/wA="
priority = 7
overlap = "skip"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "definitions.toml"
    found.write_text(FULL)
    return found


def without(text: str, *begin: str) -> str:
    """Definitions without the tables that begin so."""
    tables = text.strip().split("\n\n")
    return "\n\n".join(t for t in tables if not t.startswith(begin))


def changes(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(c["action"], c["what"], c["name"]) for c in answer["changes"]]


def test_from_nothing_and_again(bare_shell: Shell, file: Path) -> None:
    shell = bare_shell
    before = shell("topics", "apply", str(file), "--dry-run")
    assert before.code == 1
    assert "+ topic emails" in before.out
    assert "    lease: 1m" in before.out
    assert "+ binding orders.*.created -> emails of orders" in before.out
    assert "+ schedule daily of reports" in before.out
    assert "7 changes to make; nothing was changed." in before.out
    assert shell.good("topics", "list") == []

    applied = shell.good("topics", "apply", str(file))
    assert (applied["applied"], applied["dry_run"]) == (7, False)
    for again in ((), ("--dry-run",), ("--prune",)):
        assert shell.good("topics", "apply", str(file), *again)["changes"] == []
    assert "matches the file" in shell("topics", "apply", str(file)).out

    client = shell.connect()
    assert client.topic("tickets").settings.age_step_us == 30_000_000
    assert client.topic("emails").settings.retry.base_us == 250_000
    assert client.topic("emails").settings.retry.limit_us == 3_600_000_000
    assert client.bindings("orders").list() == [("orders.*.created", "emails")]
    daily, ping = client.schedules("reports").list()
    assert daily.definition.payload == b"the daily report"
    assert (ping.definition.payload, ping.definition.every_us) == (b"\xff\x00", 90_000_000)


def test_what_is_exported_is_what_was_applied(
    bare_shell: Shell, file: Path, tmp_path: Path
) -> None:
    shell = bare_shell
    shell.good("topics", "apply", str(file))
    shell.connect().create_topic("_inbox.1")
    printed = shell("topics", "export")
    assert printed.code == 0
    exported = tomllib.loads(printed.out)
    wanted = tomllib.loads(FULL)
    wanted["topics"]["emails"] |= {"kind": "timeline"}
    wanted["topics"]["emails"]["retry"] |= {"limit": "1h", "jitter": 0.1}
    wanted["topics"]["reports"]["schedules"]["daily"]["start"] = "2026-01-01T00:00:00Z"
    wanted["topics"]["reports"]["schedules"]["ping"]["every"] = "1m30s"
    assert exported == wanted
    assert shell.good("topics", "export") == wanted
    for name in ("out.toml", "out.json"):
        path = tmp_path / name
        assert shell("topics", "export", str(path)).code == 0
        assert shell.good("topics", "apply", str(path), "--prune")["changes"] == []
    assert json.loads((tmp_path / "out.json").read_text()) == wanted
    assert shell("topics", "apply", "-", stdin=printed.out).code == 0
    assert shell("topics", "apply", "-", stdin=json.dumps(wanted)).code == 0


def test_what_differs_is_shown_and_changed(bare_shell: Shell, file: Path) -> None:
    shell = bare_shell
    shell.good("topics", "apply", str(file))
    text = FULL.replace('lease = "1m"\n', "").replace('"0 9 * * *"', '"0 8 * * *"')
    file.write_text(text)
    shown = shell("topics", "apply", str(file), "--dry-run")
    assert shown.code == 1
    assert "~ topic emails\n    lease: 1m -> default\n" in shown.out
    assert "~ schedule daily of reports\n    cron: 0 9 * * * -> 0 8 * * *\n" in shown.out
    assert "2 changes to make" in shown.out
    assert shell("topics", "apply", str(file)).code == 0
    client = shell.connect()
    assert client.topic("emails").settings.lease_us == 30_000_000
    assert client.topic("emails").settings.max_attempts == 3
    assert client.schedules("reports").get("daily").cron == "0 8 * * *"


def test_nothing_is_deleted_unless_it_is_said(bare_shell: Shell, file: Path) -> None:
    shell = bare_shell
    shell.good("topics", "apply", str(file))
    shell.good("produce", "tickets", "x")
    shell.connect().create_topic("_replies")
    kept = ("[topics.tickets", "[[topics.orders.bindings", "[topics.reports.schedules.ping")
    file.write_text(without(FULL, *kept))
    gone = [
        ("schedule", "ping"),
        ("binding", "orders.*.created -> emails"),
        ("topic", "tickets"),
    ]
    left = shell.good("topics", "apply", str(file))
    assert changes(left) == [("keep", *each) for each in gone]
    assert left["applied"] == 0
    told = shell("topics", "apply", str(file), "--dry-run")
    assert told.code == 0
    assert "= topic tickets, not in the file: left alone" in told.out
    assert shell.connect().messages("tickets").count()["ready"] == 1

    told = shell("topics", "apply", str(file), "--prune", "--dry-run")
    assert told.code == 1
    assert "- schedule ping of reports" in told.out
    assert "- topic tickets, with 1 message\n" in told.out
    assert shell("topics", "describe", "tickets").code == 0
    assert changes(shell.good("topics", "apply", str(file), "--prune")) == [
        ("delete", *each) for each in gone
    ]
    client = shell.connect()
    assert {topic.name for topic in client.topics()} == {"_replies", "emails", "orders", "reports"}
    assert client.bindings("orders").list() == []
    assert [each.name for each in client.schedules("reports").list()] == ["daily"]


def test_a_paused_schedule_stays_paused(bare_shell: Shell, file: Path) -> None:
    bare_shell.good("topics", "apply", str(file))
    bare_shell.connect().schedules("reports").pause("daily")
    assert bare_shell.good("topics", "apply", str(file))["changes"] == []
    assert bare_shell.connect().schedules("reports").get("daily").paused


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("version = 1", "version = 2", "invalid_argument", "version = 1"),
        ("version = 1", "version = 1\nx = 1", "invalid_argument", "'x'"),
        ("version = 1", "version = = 1", "invalid_argument", "not valid TOML"),
        ("lease =", "leese =", "invalid_argument", "topics.emails: a topic has no setting 'leese'"),
        ('lease = "1m"', 'lease = "1ms"', "invalid_argument", "topics.emails: a lease must last"),
        ('"1m"', '"soon"', "invalid_argument", "topics.emails"),
        ("factor", "facter", "invalid_argument", "retry has base"),
        ('kind = "log"', 'kind = "heap"', "invalid_argument", "topics.orders: the kind must be"),
        ('pattern = "orders', 'patern = "orders', "invalid_argument", "a pattern and a target"),
        ('target = "emails"', 'target = "nowhere"', "not_found", "'nowhere'"),
        (
            "cron =",
            "crom =",
            "invalid_argument",
            "topics.reports: schedules.daily: a schedule has no",
        ),
        ('"0 9 * * *"', '"0 99 * * *"', "invalid_argument", "schedules.daily"),
        ('"Europe/Paris"', '"Europe/Atlantis"', "invalid_argument", "schedules.daily"),
        ('"/wA="', '"?"', "invalid_argument", "base64"),
        ('every = "90s"', 'every = "90s"\ncron = "@daily"', "invalid_argument", "schedules.ping"),
        ('[topics.reports]\nkind = "cron"', "[topics.reports]", "invalid_argument", "only a cron"),
        ("[topics.emails]", "[topics._emails]", "invalid_argument", "_emails"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_done(
    bare_shell: Shell, file: Path, old: str, new: str, code: str, said: str
) -> None:
    assert old in FULL
    file.write_text(FULL.replace(old, new, 1))
    answer = bare_shell("topics", "apply", str(file))
    assert answer.code == ERROR_EXITS[code], answer
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert bare_shell.good("topics", "list") == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("partitions = 4", "partitions = 5", "partitions 4"),
        ('age_step = "30s"', 'age_step = "31s"', "age_step"),
        ('kind = "priority"\nage_step = "30s"', 'kind = "kv"', "kind 'priority'"),
    ],
)
def test_what_can_not_change_is_told_before_anything_is_done(
    bare_shell: Shell, file: Path, old: str, new: str, said: str
) -> None:
    bare_shell.good("topics", "apply", str(file))
    text = FULL.replace(old, new).replace('lease = "1m"', 'lease = "2m"')
    file.write_text(text.replace('target = "tickets"', 'target = "emails"'))
    for how in ((), ("--dry-run",)):
        answer = bare_shell("topics", "apply", str(file), *how)
        assert answer.code == ERROR_EXITS["topic_mismatch"]
        assert said in answer.err
    assert bare_shell.connect().topic("emails").settings.lease_us == 60_000_000


def test_a_target_that_would_be_pruned(bare_shell: Shell, file: Path) -> None:
    bare_shell.good("topics", "apply", str(file))
    file.write_text(without(FULL, "[topics.tickets"))
    assert bare_shell("topics", "apply", str(file)).code == 0
    answer = bare_shell("topics", "apply", str(file), "--prune")
    assert answer.code == ERROR_EXITS["not_found"]
    assert bare_shell("topics", "describe", "tickets").code == 0


def test_files_that_are_not_there(bare_shell: Shell, tmp_path: Path) -> None:
    code = ERROR_EXITS["invalid_argument"]
    assert bare_shell("topics", "apply", str(tmp_path / "none.toml")).code == code
    assert bare_shell("topics", "export", str(tmp_path / "none" / "x.toml")).code == code
    assert bare_shell("topics", "apply").code == 2
