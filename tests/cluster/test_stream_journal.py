"""The journal on a stream: who leads, what becomes of answers that get lost, frames of any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest
from typing_extensions import Buffer

from fasti.cluster.nats import NatsConnection, Refused
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.stream_journal import JournalLimits, StreamJournal
from fasti.errors import Corruption, Fenced, StorageFull, TimedOut
from fasti.storage.frames import Frame
from tests.cluster.stream_rig import LIMITS, PATIENT, ShardStreams


@pytest.fixture
def streams(nats: NatsConnection) -> Iterator[ShardStreams]:
    with ShardStreams(nats) as found:
        yield found


def frame(sequence: int, body: bytes = b"", begins: bool = True, ends: bool = True) -> Frame:
    return Frame(sequence, 1000 + sequence, begins, ends, [body or b"body %d" % sequence])


def seen(journal: StreamJournal, after: int = 0) -> list[bytes]:
    return [bytes(stored.body) for stored in journal.replay(after)]


def append(journal: StreamJournal, *frames: Frame) -> None:
    journal.append(frames)
    journal.sync()


def test_a_second_opening_fences_the_first(streams: ShardStreams) -> None:
    first = streams.open_journal("first")
    append(first, frame(1))
    second = streams.open_journal("second")
    assert (second.epoch, second.incarnation) == (first.epoch + 1, first.incarnation)
    first.append([frame(2, b"too late")])
    with pytest.raises(Fenced) as caught:
        first.sync()
    assert caught.value.details == {"epoch": second.epoch}
    for call in (first.sync, lambda: first.append([frame(3)])):
        with pytest.raises(Fenced):
            call()
    assert first.fenced is not None
    append(second, frame(2, b"in time"))
    assert seen(second) == [b"body 1", b"in time"]
    assert seen(streams.open_journal("third")) == [b"body 1", b"in time"]


class LossyStream(PackStream):
    """Stores what is published, and tells otherwise once for each error."""

    errors: list[Exception]

    def publish(self, parts: Sequence[Buffer], expected_last: int, timeout_s: float) -> int:
        place = super().publish(parts, expected_last, timeout_s)
        if self.errors:
            raise self.errors.pop()
        return place


@pytest.mark.parametrize(
    "error",
    [lambda: Refused("wrong last sequence: 2", 10071), lambda: TimedOut("no answer")],
    ids=["refused", "unanswered"],
)
def test_an_append_that_was_stored_is_found_by_reading(
    streams: ShardStreams, error: Callable[[], Exception]
) -> None:
    stream = LossyStream(streams.connection, streams.names)
    # The first is that of `LeaderStarted`.
    stream.errors = [error()]
    journal = StreamJournal(stream, streams.new_pointer(), "broker", LIMITS, timeouts=PATIENT)
    for sequence in range(1, 4):
        stream.errors = [error()]
        append(journal, frame(sequence))
    assert seen(journal) == [b"body 1", b"body 2", b"body 3"]
    assert stream.state().last_sequence == 4
    assert seen(streams.open_journal()) == [b"body 1", b"body 2", b"body 3"]


class DeafStream(PackStream):
    """Does not store the first copies of anything."""

    losses = 0

    def publish(self, parts: Sequence[Buffer], expected_last: int, timeout_s: float) -> int:
        if self.losses:
            self.losses -= 1
            raise TimedOut("it never arrived")
        return super().publish(parts, expected_last, timeout_s)


def test_an_append_that_was_lost_is_sent_again(streams: ShardStreams) -> None:
    stream = DeafStream(streams.connection, streams.names)
    stream.losses = 2
    journal = StreamJournal(stream, streams.new_pointer(), "broker", LIMITS, timeouts=PATIENT)
    stream.losses = 2
    append(journal, frame(1))
    assert seen(journal) == [b"body 1"]
    assert stream.state().last_sequence == 2


def test_frames_of_any_size_come_in_packs_and_parts(streams: ShardStreams) -> None:
    large, larger = os.urandom(1_500_000), os.urandom(3_000_000)
    bodies = [b"small", large, b"x" * 700_000, os.urandom(700_000), larger, b"", b"end"]
    journal = streams.open_journal()
    append(journal, *(Frame(number, 7, True, True, [b]) for number, b in enumerate(bodies, 1)))
    assert seen(journal) == bodies
    assert [bytes(journal.body(number)) for number in (2, 5, 7)] == [large, larger, b"end"]
    journal = streams.open_journal("other")
    assert seen(journal) == bodies
    assert journal.last_sequence == len(bodies)


def test_a_large_frame_that_was_not_finished_is_void(streams: ShardStreams) -> None:
    stream = LossyStream(streams.connection, streams.names)
    stream.errors = []
    first = StreamJournal(stream, streams.new_pointer(), "first", LIMITS, timeouts=PATIENT)
    append(first, frame(1))
    # It dies with one of three parts in the stream.
    stream.errors = [KeyboardInterrupt()]  # type: ignore[list-item]
    first.append([frame(2, os.urandom(3_000_000))])
    with pytest.raises(KeyboardInterrupt):
        first.sync()
    second = streams.open_journal("second")
    assert second.last_sequence == 1
    append(second, frame(2, b"again"))
    assert seen(second) == [b"body 1", b"again"]
    assert seen(streams.open_journal("third")) == [b"body 1", b"again"]


def test_an_unfinished_group_is_void_for_those_who_come_later(streams: ShardStreams) -> None:
    first = streams.open_journal("first")
    append(first, frame(1), frame(2, ends=False))
    append(first, frame(3, begins=False, ends=False))
    second = streams.open_journal("second")
    assert second.last_sequence == 1
    append(second, frame(2, b"two"), frame(3, b"three"))
    streams.checkpoint(second, 2)
    assert seen(second) == [b"body 1", b"two", b"three"]
    third = streams.open_journal("third")
    assert seen(third, 2) == [b"three"]
    # What is older than the checkpoint is read when it is asked for.
    assert seen(third) == [b"body 1", b"two", b"three"]
    assert bytes(third.body(2)) == b"two"


def test_what_the_manifest_needs_is_not_trimmed(streams: ShardStreams) -> None:
    journal = streams.open_journal()
    for sequence in range(1, 11):
        append(journal, frame(sequence))
    journal.trim(8)
    assert journal.first_sequence == 1
    streams.checkpoint(journal, 5)
    journal.trim(8)
    assert journal.first_sequence == 6
    assert [piece.last_sequence for piece in journal.sealed()] == [10]


def fill(journal: StreamJournal) -> int:
    """Appends until it is full; the last frame that it took."""
    for sequence in range(1, 1000):
        try:
            append(journal, frame(sequence, os.urandom(2000)))
        except StorageFull:
            return sequence - 1
    pytest.fail("it never got full")


def test_a_full_journal_writes_nothing_and_keeps_a_reserve(nats: NatsConnection) -> None:
    with ShardStreams(nats, limits=JournalLimits(64 << 10, 16 << 10)) as streams:
        journal = streams.open_journal()
        sequence = fill(journal)
        assert sequence > 10
        assert journal.last_sequence == sequence
        journal.append([frame(sequence + 1, os.urandom(2000))], use_reserve=True)
        journal.sync()
        streams.checkpoint(journal, sequence)
        journal.trim(sequence)
        assert journal.room_bytes() > 32 << 10
        append(journal, frame(sequence + 2))
        assert len(seen(journal, sequence)) == 2


def test_a_foreign_message_in_the_stream_is_corruption(streams: ShardStreams) -> None:
    append(streams.open_journal(), frame(1))
    streams.connection.publish(streams.names.journal_subject, b"what is this")
    with pytest.raises(Corruption):
        streams.open_journal()


def test_a_deposed_leader_can_prove_nothing(streams: ShardStreams) -> None:
    first = streams.open_journal("first")
    append(first, frame(1))
    first.prove()
    second = streams.open_journal("second")
    with pytest.raises(Fenced):
        first.prove()
    second.prove()
    assert seen(second) == [b"body 1"]


def test_proofs_take_room_until_they_are_trimmed(streams: ShardStreams) -> None:
    journal = streams.open_journal()
    append(journal, frame(1))
    room_bytes = journal.room_bytes()
    took_bytes = sum(journal.prove() for _ in range(300))
    assert room_bytes - journal.room_bytes() == took_bytes > 300 * 100
    # They are few pieces, and of about that size.
    (piece,) = journal.sealed()
    assert took_bytes / 2 < piece.size_bytes < took_bytes * 2
    streams.checkpoint(journal, 1)
    journal.trim(1)
    state = streams.connection.stream_state(streams.names.journal_stream)
    assert state is not None
    assert state.first_sequence == state.last_sequence + 1
    append(journal, frame(2))
    again = streams.open_journal()
    assert seen(again, 1) == [b"body 2"]
