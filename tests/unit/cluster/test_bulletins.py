"""What members tell each other: read as it was written, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.cluster.bulletins import MemberSubjects, decode_beat, encode_beat, is_urgent
from fasti.cluster.member_records import Beat, MemberRecord, ShardBeat
from fasti.cluster.writer_actions import Role

RECORD = MemberRecord("a", "127.0.0.1:7170", 2.0, frozenset({1, 2}), 77)
SHARDS = (ShardBeat(0, Role.LEADER, 3, 40, 7), ShardBeat(5, Role.STANDBY, 0, 1 << 62))
BEAT = Beat("a", 77, 1_700_000_000_000_000, SHARDS)
YIELDS = {4: (9, "b"), 6: (2, "")}

numbers = st.integers(0, (1 << 63) - 1)
records = st.builds(
    MemberRecord,
    st.text(),
    st.text(),
    st.floats(0, 1e6),
    st.frozensets(st.integers(0, 100)),
    numbers,
)
shard_beats = st.builds(ShardBeat, st.integers(0, 255), st.sampled_from(Role), numbers, numbers)
yields = st.dictionaries(st.integers(0, 255), st.tuples(numbers, st.text()))


def told(**changes: Any) -> bytes:
    document: dict[str, Any] = json.loads(encode_beat(RECORD, BEAT, YIELDS))
    return json.dumps({**document, **changes}).encode()


def test_a_beat_is_read_as_it_was_written() -> None:
    assert decode_beat(encode_beat(RECORD, BEAT, YIELDS)) == (RECORD, BEAT, YIELDS)


def test_an_urgent_beat_says_the_same() -> None:
    plain, urgent = (encode_beat(RECORD, BEAT, YIELDS, urgent) for urgent in (False, True))
    assert decode_beat(urgent) == decode_beat(plain)
    assert (is_urgent(plain), is_urgent(urgent)) == (False, True)


@given(records, st.lists(shard_beats), numbers, yields)
def test_any_beat_is_read_as_it_was_written(
    record: MemberRecord,
    shards: list[ShardBeat],
    now_us: int,
    given_up: dict[int, tuple[int, str]],
) -> None:
    beat = Beat(record.name, record.incarnation, now_us, tuple(shards))
    assert decode_beat(encode_beat(record, beat, given_up)) == (record, beat, given_up)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"format": None},
        {"weight": "heavy"},
        {"formats": 1},
        {"incarnation": None},
        {"shards": [[0, "king", 1, 1]]},
        {"shards": [[0, "leader"]]},
        {"shards": None},
        {"yields": [[0, 1]]},
    ],
)
def test_what_is_no_beat_of_this_format(changes: dict[str, Any]) -> None:
    assert decode_beat(told(**changes)) is None


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"{}", b"[]", b"7", b'"beat"', b"null"])
def test_other_programs_words_are_not_read(data: bytes) -> None:
    assert decode_beat(data) is None


@given(st.binary())
def test_no_bytes_raise(data: bytes) -> None:
    assert decode_beat(data) is None


def test_fields_of_a_later_minor_change_are_not_minded() -> None:
    assert decode_beat(told(rack="r7")) == (RECORD, BEAT, YIELDS)


def test_subjects_of_two_clusters_differ() -> None:
    one, other = MemberSubjects("one"), MemberSubjects("other")
    assert (one.beats, one.ping("a"), one.call("a")) == ("one.beat", "one.ping.a", "one.call.a")
    assert {one.beats, one.ping("a"), one.call("a")}.isdisjoint(
        {other.beats, other.ping("a"), other.call("a")}
    )
