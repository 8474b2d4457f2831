"""A journal that another broker appends to, as a standby has read it: for the payloads in its frames.

Any thread, while the standby's own reads on: the list of pieces is copied before it is looked through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from fasti.cluster.piece_reader import PieceReader
from fasti.cluster.pieces import Piece
from fasti.cluster.pointer import Place
from fasti.cluster.stream_storage import ShardStreams
from fasti.errors import Gone, NotFound
from fasti.storage.frames import StoredFrame

_READ_S = 1.0
_last = attrgetter("last")


class FollowedJournal:
    """A `JournalReader` from the place of the standby's manifest on."""

    def __init__(self, streams: ShardStreams) -> None:
        self._leadership = streams.leadership
        self._reads = PieceReader(streams.stream, _READ_S)
        # What the manifest in force tells, since the one before: replaced as a whole.
        self._older: list[Piece] = []

    def keep_before(self, place: Place) -> None:
        """Those who read a snapshot from before this manifest still want frames that it tells. The stream has
        them for a while.
        """
        items = list(self._leadership.pieces.items)
        self._older = [piece for piece in items if piece.end <= place.sequence]

    @property
    def epoch(self) -> int:
        return self._leadership.epoch

    @property
    def first_sequence(self) -> int:
        return self._leadership.pieces.base.reader.last_frame + 1

    @property
    def last_sequence(self) -> int:
        return self._leadership.pieces.last

    @property
    def finished_sequence(self) -> int:
        return self._leadership.pieces.finished

    def replay(self, after: int) -> Iterator[StoredFrame]:
        pieces = self._leadership.pieces
        return self._reads.replay(list(pieces.items), after, pieces.finished)

    def body(self, sequence: int) -> memoryview:
        """Raises `Gone` if a manifest tells it by now, `NotFound`, `NoQuorum`."""
        # In this order: what the first list has lost meanwhile is in the second.
        for items in (list(self._leadership.pieces.items), self._older):
            number = bisect_left(items, sequence, key=_last)
            if number < len(items) and items[number].first <= sequence:
                return self._reads.frame(items[number], sequence).body
        if sequence > self.last_sequence:
            raise NotFound(f"frame {sequence} was not read here")
        raise Gone(f"frame {sequence} is before what is followed")
