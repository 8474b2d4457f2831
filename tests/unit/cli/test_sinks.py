"""`fasti sinks`: what is remembered, and how to have it forgotten."""

from __future__ import annotations

import pyarrow as pa

from tests.unit.cli.rig import Shell


def published(shell: Shell) -> None:
    client = shell.connect()
    sink = client.sink("emails", "nightly")
    rows = pa.RecordBatch.from_pydict({"payload": pa.array([b"1", b"2"], pa.binary())})
    with sink.stage(7, 0, 0) as stage:
        stage.write(rows)
    sink.publish(7, [stage.staged.name])
    with sink.stage(8, 0, 0) as stage:
        stage.write(rows.slice(1))


def test_sinks_are_listed_shown_and_forgotten(shell: Shell) -> None:
    assert shell("sinks", "list").out == "No sink has written anything.\n"
    published(shell)
    (listed,) = shell.good("sinks", "list")
    assert (listed["sink"], listed["batch"], listed["outcomes"]) == ("nightly", 7, {"ok": 2})
    assert "nightly" in shell("sinks", "list").out
    shown = shell.good("sinks", "show", "nightly")
    assert shown == listed
    assert (shown["stages"], shown["rows"]) == (1, 1)
    text = shell("sinks", "show", "nightly").out
    assert "last batch" in text
    assert "rows ok" in text
    assert shell("sinks", "forget", "nightly", stdin="n\n").code != 0
    assert shell.good("sinks", "forget", "nightly", "--yes") == {
        "sink": "nightly",
        "forgotten": True,
    }
    assert shell("sinks", "forget", "nightly", "-y").out == "nightly: not known\n"


def test_a_sink_that_is_not_there(shell: Shell) -> None:
    said = shell("sinks", "show", "nobody")
    assert said.code != 0
    assert "there is no sink 'nobody'" in said.err
