"""Two brokers that begin with a shard that nobody had before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from typing_extensions import Buffer

from fasti.cluster.nats import NatsConnection
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.stream_journal import StreamJournal
from fasti.errors import Fenced
from tests.cluster.stream_rig import LIMITS, PATIENT, ShardStreams


@pytest.fixture
def streams(nats: NatsConnection) -> Iterator[ShardStreams]:
    with ShardStreams(nats) as streams:
        yield streams


class OvertakenStream(PackStream):
    """Another broker takes the shard over when this one is about to."""

    streams: ShardStreams
    winner: StreamJournal | None = None

    def publish(self, parts: Sequence[Buffer], expected_last: int, timeout_s: float) -> int:
        if self.winner is None:
            self.winner = self.streams.open_journal("winner")
        return super().publish(parts, expected_last, timeout_s)


def test_the_one_that_is_second_on_an_empty_stream_stands_down(streams: ShardStreams) -> None:
    """Each has drawn an incarnation: the one that is in the stream counts, and nothing is damaged."""
    stream = OvertakenStream(streams.connection, streams.names)
    stream.streams = streams
    with pytest.raises(Fenced):
        StreamJournal(stream, streams.new_pointer(), "second", LIMITS, timeouts=PATIENT)
    assert stream.winner is not None
    again = streams.open_journal("second")
    assert (again.incarnation, again.epoch) == (stream.winner.incarnation, 2)
