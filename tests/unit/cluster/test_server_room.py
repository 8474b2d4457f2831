"""How much room NATS servers have, of what they say."""

from __future__ import annotations

from fasti.cluster.server_reports import ReplicaState, ServerReport, read_report
from fasti.cluster.server_room import UNBOUNDED, ServerRoom

COPY = ReplicaState(1, 1, 1, 0, False)


def report(name: str, used: int, most: int | None = 1_600, stream: str = "s") -> ServerReport:
    return ServerReport(name, name, "2.15.1", True, {stream: COPY}, used, most)


def test_a_shard_has_the_room_of_a_majority_of_its_servers_less_a_reserve() -> None:
    room = ServerRoom(3)
    assert room.for_messages("s") == UNBOUNDED
    room.take([report("n0", 1_600), report("n1", 500), report("n2", 1_000)], 0)
    assert room.for_messages("s") == 600 - 100
    assert room.for_checkpoints("s") == 600 - 25
    assert room.for_messages("another") == UNBOUNDED
    # One doesn't answer: both others are needed.
    room.take([report("n0", 1_600), report("n1", 500)], 0)
    assert room.for_messages("s") == -100
    # Of one alone nothing can be said, nor of those that name no bound.
    room.take([report("n0", 1_600), report("n1", 1_600, None)], 0)
    assert room.for_messages("s") == UNBOUNDED


def test_what_was_written_counts_until_the_servers_have_told_of_it() -> None:
    room = ServerRoom(1)
    room.take([report("n0", 0)], 0)
    assert room.for_messages("s") == 1_500
    room.note_written(200)
    assert room.for_messages("s") == 1_300
    asked = room.written_bytes
    room.note_written(50)
    room.take([report("n0", 200)], asked)
    assert room.for_messages("s") == 1_250


def test_servers_with_little_room_are_asked_often() -> None:
    room = ServerRoom(1)
    assert not room.is_low
    room.take([report("n0", 1_000)], 0)
    assert not room.is_low
    room.take([report("n0", 1_300)], 0)
    assert room.is_low


def test_a_servers_report_has_its_room() -> None:
    told = {"storage": 7, "config": {"store_dir": "/x", "sync_always": True, "max_storage": 100}}
    assert read_report("n", "i", "2.15.1", told)[5:] == (7, 100)
    assert read_report("n", "i", "2.15.1", {"config": {"store_dir": "/x"}})[5:] == (0, None)
