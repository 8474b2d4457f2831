"""`fasti topics`: every setting is an option, and what is shown is what was given."""

from __future__ import annotations

from dataclasses import fields

from fasti.cli.exits import ERROR_EXITS
from fasti.cli.topic_settings import CHANGEABLE, SETTINGS
from fasti.model import RetryPolicy, TopicSettings
from tests.unit.cli.rig import Shell


def test_every_setting_is_an_option_of_create_and_update(shell: Shell) -> None:
    wanted = {each.name for each in fields(TopicSettings)} - {"retry"}
    assert {each.field for each in SETTINGS if not each.in_retry} == wanted
    assert {each.field for each in SETTINGS if each.in_retry} == {
        f.name for f in fields(RetryPolicy)
    }
    made, changed = shell("topics", "create", "--help").out, shell("topics", "update", "--help").out
    for setting in SETTINGS:
        option = "--" + setting.name.replace("_", "-")
        assert option in made
        assert (option in changed) == (setting in CHANGEABLE)


def test_a_topic_from_its_making_to_its_end(bare_shell: Shell) -> None:
    shell = bare_shell
    made = shell.good(
        *("topics", "create", "emails", "--partitions", "3", "--lease", "1m30s"),
        *("--max-attempts", "5", "--retry-base", "250ms", "--retry-factor", "1.5"),
    )
    assert made["settings"]["partitions"] == 3
    assert made["settings"]["lease_us"] == 90_000_000
    assert made["settings"]["retry"]["base_us"] == 250_000
    assert made["settings"]["retry"]["limit_us"] == RetryPolicy().limit_us

    changed = shell.good(
        "topics", "update", "emails", "--retry-limit", "10m", "--lookahead", "20ms"
    )
    assert changed["settings"]["retry"]["limit_us"] == 600_000_000
    assert changed["settings"]["retry"]["factor"] == 1.5
    assert changed["settings"]["lookahead_us"] == 20_000
    assert changed["settings"]["max_attempts"] == 5

    described = shell("topics", "describe", "emails").out
    assert "1m30s" in described
    assert "10m" in described
    listed = shell.good("topics", "list")
    assert [topic["topic"] for topic in listed] == ["emails"]
    assert listed[0]["counts"]["scheduled"] == 0
    narrow, wide = shell("topics", "list").out, shell("topics", "list", "--wide").out
    assert "timeline" in narrow
    assert "cancelled" not in narrow
    assert "cancelled" in wide
    assert max(map(len, narrow.splitlines())) < 80 < max(map(len, wide.splitlines()))

    assert shell("topics", "delete", "emails", stdin="n\n").code == 1
    assert shell("topics", "describe", "emails").code == 0
    shell("produce", "emails", "a", "b", "--delay", "1h")
    asked = shell("topics", "delete", "emails", stdin="y\n")
    assert asked.code == 0
    assert "2 messages" in asked.err
    assert shell.good("topics", "list") == []
    assert "no topics" in shell("topics", "list").out


def test_a_log_with_its_retention(bare_shell: Shell) -> None:
    shell = bare_shell
    made = shell.good(
        *("topics", "create", "events", "--kind", "log", "--segment-age", "7d"),
        *("--segment-bytes", "1MiB", "--retained-bytes", "10GiB"),
    )["settings"]
    assert (made["kind"], made["segment_age_us"]) == ("log", 7 * 86_400_000_000)
    assert (made["segment_bytes"], made["retained_bytes"]) == (1 << 20, 10 << 30)
    described = shell("topics", "describe", "events").out
    assert "10GiB" in described
    changed = shell.good("topics", "update", "events", "--retained-bytes", "0")["settings"]
    assert (changed["retained_bytes"], changed["segment_bytes"]) == (0, 1 << 20)
    assert shell("topics", "update", "events", "--retained-bytes", "much").code == 2


def test_what_can_not_be_ends_with_its_own_code(shell: Shell) -> None:
    assert shell.good("topics", "create", "emails")["topic"] == "emails"
    mismatch = shell("topics", "create", "emails", "--lease", "1m")
    assert mismatch.code == ERROR_EXITS["topic_mismatch"]
    assert "lease_us" in mismatch.err
    assert shell("topics", "describe", "nothing").code == ERROR_EXITS["not_found"]
    assert shell("topics", "delete", "nothing", "--yes").code == ERROR_EXITS["not_found"]
    assert shell("topics", "create", "x", "--kind", "heap").code == ERROR_EXITS["invalid_argument"]
    assert shell("topics", "update", "emails").code == 2
    assert shell("topics", "create", "x", "--lease", "soon").code == 2


def test_deleting_a_topic_names_what_points_to_it(bare_shell: Shell) -> None:
    shell = bare_shell
    shell.good("topics", "create", "emails")
    shell.good("topics", "create", "orders")
    shell.good("topics", "create", "reports", "--kind", "cron")
    shell.good("schedules", "put", "reports", "daily", "--target", "emails", "--every", "1d")
    shell.good("bindings", "add", "orders", "orders.>", "emails")
    refused = shell("topics", "delete", "emails", stdin="n\n")
    assert refused.code == 1
    assert "1 schedule will wait for a topic of its name: reports daily" in refused.err
    assert "1 binding will end with it: orders orders.>" in refused.err
    deleted = shell("topics", "delete", "emails", "--yes", "--json")
    assert deleted.code == 0
    assert "warning: emails" in deleted.err
    assert deleted.json["schedules"] == [{"topic": "reports", "name": "daily"}]
    assert deleted.json["bindings"] == [{"topic": "orders", "pattern": "orders.>"}]
    assert "emails (missing)" in shell("schedules", "list", "reports").out
    assert "emails (missing)" in shell("schedules", "show", "reports", "daily").out
    assert shell.good("schedules", "list", "reports")[0]["target_missing"] is True
    assert "warning" not in shell("topics", "delete", "orders", "--yes").err
