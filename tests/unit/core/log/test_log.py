"""Logs on a local shard: appending, reading, retention, transactions, idempotence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.calls.listing import metadata
from fasti.core.columns.hashing import ranked_partitions
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.commands import (
    Ack,
    ChangeTopic,
    Count,
    CreateTopic,
    DeleteTopic,
    Get,
    Produce,
    Target,
    Transaction,
    When,
)
from fasti.core.keys import Keys
from fasti.core.log.commands import Truncate
from fasti.errors import Gone, InvalidArgument
from fasti.model import DAY_US, SECOND_US, SEQUENCE_BITS, OnConflict, Outcome, TopicSettings
from tests.unit.core.log.rig import START_US, LogRig


def test_rows_have_offsets_from_0_and_are_read_back_in_order() -> None:
    rig = LogRig()
    first = rig.produce([b"a", b"b"])
    second = rig.produce([b"c"])
    assert first.ids.tolist() == [1, 2]
    assert second.ids.tolist() == [3]
    assert first.versions.tolist() == [1, 1]
    assert [(row["offset"], row["payload"]) for row in rig.read()] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]
    assert {row["created_us"] for row in rig.read()} == {START_US}
    assert rig.describe() == {
        "partition": 0,
        "earliest": 0,
        "end": 3,
        "rows": 3,
        "bytes": rig.describe()["bytes"],
        "segments": 1,
        "earliest_us": START_US,
        "latest_us": START_US,
    }


def test_everything_beside_the_payload_comes_back() -> None:
    rig = LogRig()
    command = rig.command([b"x", b"y"], ["k", None])
    assert not rig.call(command).status.any()
    rig.checkpoint()
    assert [row["key"] for row in rig.read()] == ["k", None]


def test_partitions_as_told_by_key_and_in_turn() -> None:
    rig = LogRig(partitions=4)
    told = rig.produce([b"a", b"b"], ["x", "y"], partition=2)
    assert (told.ids >> SEQUENCE_BITS).tolist() == [2, 2]
    turns = [int(rig.produce([b"z", b"z"]).ids[0]) >> SEQUENCE_BITS for _ in range(5)]
    assert turns == [0, 1, 2, 3, 0]
    keys = [f"key-{n}" for n in range(200)]
    ids = rig.produce([key.encode() for key in keys], keys).ids
    wanted = Keys(pa.array(keys), (0, 0)).ranked(4)
    assert (ids >> SEQUENCE_BITS).tolist() == wanted.tolist()
    assert set(wanted.tolist()) == {0, 1, 2, 3}
    again = rig.produce([b"2"] * 200, keys).ids
    assert (again >> SEQUENCE_BITS).tolist() == wanted.tolist()
    for number in range(4):
        read = [row["key"] for row in rig.read(number) if row["payload"] == b"2"]
        assert read == [key for key, its in zip(keys, wanted, strict=True) if its == number]


def test_rendezvous_hashing_is_as_the_protocol_says() -> None:
    """Clients of every language compute the same."""
    text = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
    table = re.findall(r"^\| `(.+)` \| ([0-9a-f]{16}) \|((?: \d+ \|){5})$", text, re.MULTILINE)
    assert len(table) == 4
    for key, hashed, places in table:
        found = public_hashes(pa.array([key]))
        assert f"{int(found[0]):016x}" == hashed
        told = [int(place) for place in places.split("|")[:-1]]
        assert [int(ranked_partitions(found, count)[0]) for count in (2, 3, 4, 8, 64)] == told


def test_one_more_partition_only_takes_keys_and_all_have_their_share() -> None:
    many = public_hashes(pa.array([str(n) for n in range(20_000)]))
    eight, nine = ranked_partitions(many, 8), ranked_partitions(many, 9)
    moved = eight != nine
    assert (nine[moved] == 8).all(), "only what the new one gets moves"
    shares = np.bincount(eight, minlength=8)
    assert shares.min() > 2_200
    assert shares.max() < 2_800


def test_a_key_that_is_missing_goes_in_turn() -> None:
    rig = LogRig(partitions=3)
    for turn in range(3):
        ids = rig.produce([b"a", b"b"], ["k", None]).ids >> SEQUENCE_BITS
        assert ids[1] == turn


def test_produce_that_makes_no_sense_is_refused() -> None:
    rig = LogRig(partitions=2)
    for more, field in (
        ({"partition": 2}, "partition"),
        ({"partition": -1}, "partition"),
        ({"stage": "s"}, "stage"),
        ({"on_conflict": OnConflict.REPLACE}, "on_conflict"),
        ({"when": When(delay_us=1)}, "due"),
        ({"when": When(due_us=START_US + 1)}, "due"),
        ({"priorities": np.zeros(1, dtype=np.uint16)}, "priority"),
    ):
        with pytest.raises(InvalidArgument) as raised:
            rig.produce([b"a"], **more)
        assert raised.value.field == field
    rig.produce([b"a"], when=When(due_us=START_US))
    assert rig.read(0)[0]["payload"] == b"a"


def test_reading_where_nothing_is() -> None:
    rig = LogRig()
    rig.produce([b"a", b"b", b"c"])
    assert rig.page(0, 3).pieces == []
    for offset in (4, -1):
        with pytest.raises(InvalidArgument, match="ends at 3"):
            rig.page(0, offset)
    with pytest.raises(InvalidArgument, match="partitions 0 to 0"):
        rig.page(1, 0)
    assert rig.call(Truncate("events", 0, 2)).value["earliest"] == 2
    with pytest.raises(Gone) as raised:
        rig.page(0, 1)
    assert raised.value.details == {"partition": 0, "earliest": 2, "lost": 1}
    assert rig.payloads() == [b"c"]


def test_truncate() -> None:
    rig = LogRig()
    rig.produce([b"a", b"b", b"c"])
    for before in (-1, 4):
        assert isinstance(rig.call(Truncate("events", 0, before)).error, InvalidArgument)
    frames = rig.shard.store.journal.last_sequence
    assert rig.call(Truncate("events", 0, 0)).error is None
    assert rig.shard.store.journal.last_sequence == frames, "nothing to do, nothing written"
    rig.call(Truncate("events", 0, 3))
    assert rig.describe()["rows"] == rig.describe()["bytes"] == rig.describe()["segments"] == 0
    assert rig.produce([b"d"]).ids.tolist() == [4]
    rig.restart()
    assert rig.payloads() == [b"d"]


def test_get_and_count() -> None:
    rig = LogRig(partitions=2)
    ids = rig.produce([b"a", b"b", b"c"], partition=1).ids
    rig.call(Truncate("events", 1, 1))
    wanted = np.array([*ids, ids[-1] + 1, 0, 5 << SEQUENCE_BITS | 1, 1], dtype=np.int64)
    found = rig.call(Get("events", Target(ids=wanted)))
    words = [Outcome(int(status)).word for status in found.status]
    assert words == ["gone", "ok", "ok", *["not_found"] * 4]
    batch = rig.shard.store.payloads.gather(found.columns["location"][1:3])
    assert batch.column("payload").to_pylist() == [b"b", b"c"]
    assert found.columns["due_us"].tolist() == [0, START_US, START_US, 0, 0, 0, 0]
    # Metadata as the protocol has it can be made of it.
    assert metadata(found).column("state").to_pylist()[1:3] == ["ready", "ready"]
    assert rig.call(Count("events")).states["ready"] == 2


def test_other_commands_say_what_the_topic_is() -> None:
    rig = LogRig()
    rig.create("mail", kind="timeline")
    assert "mail" in str(rig.call(Truncate("mail", 0, 0)).error)
    by_key = rig.call(Get("events", Target(keys=Keys(pa.array(["k"]), (1, 2)))))
    assert by_key.error.field == "key"


def test_a_retried_batch_is_not_a_second_one() -> None:
    rig = LogRig(partitions=2)
    first = rig.produce([b"a", b"b"], producer="p", producer_sequence=1)
    for restart in (False, True):
        if restart:
            rig.checkpoint()
            rig.restart()
        again = rig.produce([b"a", b"b"], producer="p", producer_sequence=1)
        assert again.sent_before
        assert again.ids.tolist() == first.ids.tolist()
    assert rig.payloads() == [b"a", b"b"]
    assert rig.produce([b"c"], producer="p", producer_sequence=2, partition=0).ids.tolist() == [3]


def test_a_transaction_over_kinds_happens_whole_or_not_at_all() -> None:
    rig = LogRig(partitions=2)
    rig.create("mail", kind="timeline")
    rig.produce([b"before"], partition=0)
    before = rig.describe()
    mail = Produce("mail", rig.command([b"m"]).rows)
    stale = Ack("mail", np.array([77]), np.array([5]))
    for parts in (
        [rig.command([b"x", b"y"], partition=0), rig.command([b"z"], partition=0), stale],
        [mail, rig.command([b"x", b"y"], ["a", "b"]), stale],
    ):
        assert not rig.call(Transaction(parts)).committed
        assert rig.describe() == before
        assert rig.payloads() == [b"before"]
    parts = [mail, rig.command([b"x"], partition=0), rig.command([b"y"], partition=0)]
    assert rig.call(Transaction(parts)).committed
    rig.restart()
    assert rig.payloads() == [b"before", b"x", b"y"]
    assert rig.call(Count("mail")).states["ready"] == 1


def test_atomic_is_no_different() -> None:
    rig = LogRig()
    assert rig.produce([b"a", b"b"], atomic=True).ids.tolist() == [1, 2]


def test_old_rows_go_by_whole_segments_also_after_a_restart() -> None:
    rig = LogRig(segment_age_us=80 * SECOND_US)
    for number in range(4):
        rig.produce([str(number).encode()])
        rig.step(5)
    # Now it is second 20; rows came at 0, 5, 10 and 15, in two segments.
    assert rig.describe()["segments"] == 2
    rig.step(64)
    assert len(rig.read()) == 4
    rig.checkpoint()
    rig.restart()
    rig.step(1)
    assert rig.payloads() == [b"2", b"3"]
    rig.restart()
    assert rig.payloads() == [b"2", b"3"]
    rig.step(10)
    assert rig.read() == []
    assert rig.describe()["end"] == 4
    assert rig.produce([b"4"]).ids.tolist() == [5]


def test_a_step_is_asked_for_when_a_segment_gets_old() -> None:
    rig = LogRig(segment_age_us=80 * SECOND_US)
    rig.produce([b"a"])
    wake = rig.shard.step([], rig.now_us, 0).wake_at_us
    assert wake == START_US + 80 * SECOND_US
    rig.step(80)
    assert rig.read() == []
    assert rig.shard.step([], rig.now_us, 0).wake_at_us is None


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    rig = LogRig(retained_bytes=64 << 10)
    for _ in range(100):
        rig.produce([bytes(1000)] * 4)
    described = rig.describe()
    assert 48 << 10 < described["bytes"] <= 64 << 10
    assert described["segments"] in (7, 8)
    assert described["earliest"] > 300
    assert len(rig.read()) == described["rows"]


def test_settings_that_change_count_at_once() -> None:
    rig = LogRig()
    for _ in range(50):
        rig.produce([bytes(1000)] * 4)
        rig.step(1)
    assert rig.describe()["earliest"] == 0

    def change(**settings: Any) -> None:
        topic = TopicSettings(kind="log", **settings)
        assert rig.call(ChangeTopic("events", topic)).error is None

    change(segment_age_us=DAY_US)
    rig.step()
    assert rig.describe()["earliest"] == 0
    change(segment_age_us=10 * SECOND_US)
    rig.step(8)
    assert rig.describe()["rows"] == 200, "one segment, which is as old as its newest row"
    rig.step(1)
    assert rig.describe()["rows"] == 0
    change(retained_bytes=4096)
    for _ in range(9):
        rig.produce([bytes(2000)])
    assert rig.describe()["bytes"] <= 4096


def test_settings_that_no_log_has_and_that_only_logs_have() -> None:
    rig = LogRig()
    for field, value in (
        ("segment_age_us", -1),
        ("segment_age_us", 1 << 62),
        ("segment_bytes", 4095),
        ("retained_bytes", -1),
    ):
        reply = rig.call(CreateTopic("other", TopicSettings(kind="log", **{field: value})))
        assert reply.error.field == field
    for field in ("segment_age_us", "retained_bytes"):
        reply = rig.call(CreateTopic("other", TopicSettings(**{field: 10_000_000})))
        assert reply.error.field == field
        assert "only log topics" in reply.error.message


def test_a_deleted_log_is_gone_with_its_blocks() -> None:
    rig = LogRig(segment_age_us=DAY_US, retained_bytes=1 << 20)
    rig.produce([b"a"] * 100)
    rig.checkpoint()
    named = rig.shard.store.manifest.logs
    assert len(named) == 1
    rig.produce([b"b"])
    rig.call(DeleteTopic("events"))
    rig.step()
    rig.checkpoint()
    assert rig.shard.store.manifest.logs == []
    assert named[0].name not in rig.shard.store.blocks.list()
    rig.restart()
    rig.create("events")
    assert rig.produce([b"new"]).ids.tolist() == [1]
    rig.step(100 * 86_400)
    assert rig.payloads() == [b"new"]
