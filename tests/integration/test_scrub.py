"""Scrubs: damage is found before a reader comes to it, told with what it hit, and healed where it can be."""

from __future__ import annotations

from typing import Any

import pytest

from fasti.broker import scrubber
from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.storage.tools.inspect import inspect
from fasti.storage.tools.scrub_directory import scrub_directory
from tests.integration.shard_rig import (
    NOW_US,
    SETTINGS,
    FakeClock,
    SharedFiles,
    int64s,
    make_topic,
    produce,
    serving,
    shown,
)
from tests.integration.test_damage import counts, dead, find, payloads_of

LATER_US = NOW_US + 86_400_000_000


def one(files: SharedFiles, kind: str) -> str:
    return next(name for name in files.list("blocks/") if name.endswith(kind))


def scrubbed(shard: Shard) -> Any:
    """What a pass finds, once it and the checkpoint behind it are complete."""
    shard.scrubber.start_pass()
    with shard.scrubber._changed:
        assert shard.scrubber._changed.wait_for(lambda: shard.scrubber.current is None, 60)
    shard.checkpoint()
    return shard.scrubber.last


@pytest.fixture
def stored() -> Any:
    """A directory with blocks of every kind, and full segments."""
    files, clock = SharedFiles(), FakeClock()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        ids = produce(shard, *payloads_of(300), due_us=LATER_US)
        shard.checkpoint()
        moved = co.Move("t", co.Target(ids=int64s(*ids[:10])), co.When(due_us=LATER_US + 1))
        assert shard.call(moved, 10).all_ok
        shard.checkpoint()
    return files, clock, ids


def test_an_undamaged_directory_has_no_findings(stored: Any) -> None:
    files, clock, _ = stored
    assert scrub_directory(files)["findings"] == []
    with serving(files, clock=clock) as shard:
        found = scrubbed(shard)
        assert found.findings == []
        assert found.read_bytes > 30_000
        assert found.finished_us is not None


def test_damaged_payloads_are_told_with_their_ids_and_given_up_before_they_are_due(
    stored: Any,
) -> None:
    files, clock, ids = stored
    name = one(files, ".payloads")
    files.flip_bit(name, find(files, name, payloads_of(300)[100]) + 20)
    (offline,) = scrub_directory(files)["findings"]
    assert offline["file"] == name
    assert offline["lost"][0]["topic"] == "t"
    assert ids[100] in offline["lost"][0]["ids"]
    with serving(files, clock=clock) as shard:
        (finding,) = scrubbed(shard).findings
        assert finding.to_dict() == offline
        assert list(dead(shard)) == offline["lost"][0]["ids"]
        assert set(dead(shard).values()) == {"corrupt"}
        assert counts(shard)["scheduled"] == 300 - len(dead(shard))


def test_what_was_read_before_it_rotted_is_read_again(stored: Any) -> None:
    files, clock, ids = stored
    with serving(files, clock=clock) as shard:
        assert len(shown(shard)) == 300
        name = one(files, ".payloads")
        files.flip_bit(name, find(files, name, payloads_of(300)[100]) + 20)
        assert len(scrubbed(shard).findings) == 1
        assert shown(shard)[ids[100]] is None


@pytest.mark.parametrize("kind", [".rows", ".delta", ".state"])
def test_metadata_that_rots_under_a_running_shard_is_written_anew(stored: Any, kind: str) -> None:
    files, clock, _ = stored
    with serving(files, clock=clock) as shard:
        before = shown(shard)
        name = one(files, kind)
        files.flip_bit(name, files.open(name, writable=False).size // 2)
        (finding,) = scrubbed(shard).findings
        assert finding.file == name
        assert name not in files.list("blocks/")
        assert len(shard.store.payloads.damages) == 0
    # Without that it would not open.
    assert inspect(files).ok
    with serving(files, clock=clock) as shard:
        assert shown(shard) == before


def test_a_sealed_segment_that_rots_is_found(stored: Any) -> None:
    files, clock, _ = stored
    settings = type(SETTINGS)(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096)
    with serving(files, settings, clock=clock) as shard:
        for _ in range(3):
            produce(shard, b"x" * 40_000, due_us=LATER_US)
        name = next(name for name in files.list("journal/") if name.endswith(".segment"))
        files.flip_bit(name, find(files, name, payloads_of(300)[100]))
        assert [finding.file for finding in scrubbed(shard).findings] == [name]


def test_a_pass_begins_by_itself(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock, _ = stored
    monkeypatch.setattr(scrubber, "_FIRST_S", 0.0)
    with serving(files, clock=clock) as shard, shard.scrubber._changed:
        changed = shard.scrubber._changed
        assert changed.wait_for(lambda: shard.scrubber.last is not None, 60)


def test_without_an_interval_none_does(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock, _ = stored
    monkeypatch.setattr(scrubber, "_FIRST_S", 0.0)
    settings = type(SETTINGS)(
        segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, scrub_interval_us=0
    )
    with serving(files, settings, clock=clock) as shard:
        assert shard.scrubber._next_at is None


def test_a_shard_that_closes_does_not_wait_for_a_slow_pass(stored: Any) -> None:
    files, clock, _ = stored
    settings = type(SETTINGS)(
        segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, scrub_bytes_per_s=1
    )
    with serving(files, settings, clock=clock) as shard:
        shard.scrubber.start_pass()
    assert shard.scrubber.last is None
