"""`fasti schedules`: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasti.cli.exits import ERROR_EXITS, FOUND_SOMETHING
from fasti.errors import InvalidArgument, NotFound
from tests.unit.cli.rig import Shell


@pytest.fixture
def cron_shell(shell: Shell) -> Shell:
    shell.good("topics", "create", "reports", "--kind", "cron")
    return shell


def test_put_show_and_list(cron_shell: Shell) -> None:
    assert "no schedules" in cron_shell("schedules", "list", "reports").out
    put = ["schedules", "put", "reports", "daily", "the report", "--target", "emails"]
    timing = ["--cron", "0 9 * * *", "-z", "Europe/Paris"]
    made = cron_shell(*put, *timing, "--header", "lang=fr", "--jitter", "5m").out
    for words in ("0 9 * * *", "Europe/Paris", "the report", "lang=fr", "5m"):
        assert words in made
    told = cron_shell.good("schedules", "list", "reports")
    assert [each["name"] for each in told] == ["daily"]
    assert told[0]["payload"] == "the report"
    assert told[0]["next"]["local"].endswith(("09:00:00+01:00", "09:00:00+02:00"))
    assert "daily" in cron_shell("schedules", "list", "reports").out
    assert cron_shell.good(*put, *timing, "--version", "1")["version"] == 2
    refused = cron_shell(*put, *timing, "--version", "1")
    assert refused.code == FOUND_SOMETHING
    assert "version 2" in refused.err


def test_the_payload_comes_from_a_file(cron_shell: Shell, tmp_path: Path) -> None:
    place = tmp_path / "payload"
    place.write_bytes(b"\xff\x00")
    put = ["schedules", "put", "reports", "often", "--target", "emails", "--every", "15m"]
    told = cron_shell.good(*put, "--file", str(place))
    assert told["payload_base64"] == "/wA="
    assert told["every_us"] == 900_000_000


def test_preview_of_a_schedule_and_of_an_expression(cron_shell: Shell) -> None:
    about = ["--cron", "30 2 * * *", "-z", "Europe/Paris"]
    cron_shell.good("schedules", "put", "reports", "daily", "--target", "emails", *about)
    window = ["--after", "2026-03-28T00:00Z", "-n", "2"]
    named = cron_shell.good("schedules", "preview", "reports", "daily", *window)
    assert named == cron_shell.good("schedules", "preview", *about, *window)
    assert named == [
        {"utc": "2026-03-28T01:30:00.000000Z", "local": "2026-03-28T02:30:00+01:00"},
        {"utc": "2026-03-29T01:00:00.000000Z", "local": "2026-03-29T03:00:00+02:00"},
    ]
    table = cron_shell("schedules", "preview", "reports", "daily", *window).out
    assert "2026-03-29 01:00:00" in table
    assert "Sun 2026-03-29 03:00:00 +0200" in table
    assert cron_shell("schedules", "preview").code == 2


def test_pause_resume_run_and_delete(cron_shell: Shell) -> None:
    place = ["reports", "daily"]
    put = ["--target", "emails", "--cron", "@yearly", "--overlap", "skip"]
    cron_shell.good("schedules", "put", *place, *put)
    assert "is paused" in cron_shell("schedules", "pause", *place).out
    assert "already" in cron_shell("schedules", "pause", *place).out
    assert "paused" in cron_shell("schedules", "list", "reports").out
    assert "is resumed" in cron_shell("schedules", "resume", *place).out
    assert cron_shell.good("schedules", "run", *place)["status"] == "ok"
    refused = cron_shell("schedules", "run", *place)
    assert refused.code == FOUND_SOMETHING
    assert "not finished" in refused.err
    cron_shell.good("schedules", "delete", *place, "--yes")
    gone = cron_shell("schedules", "show", *place)
    assert gone.code == ERROR_EXITS[NotFound.code]


def test_what_makes_no_sense_is_told(cron_shell: Shell) -> None:
    put = ["schedules", "put", "reports", "bad", "--target", "emails", "--cron", "61 * * * *"]
    refused = cron_shell(*put)
    assert refused.code == ERROR_EXITS[InvalidArgument.code]
    assert "bad minute" in refused.err
