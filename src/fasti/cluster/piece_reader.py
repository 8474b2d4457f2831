"""Frames of pieces, read from a journal's stream. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fasti.cluster.pack import Pack, frames_in
from fasti.cluster.pack_reader import PackReader
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import insist
from fasti.cluster.pieces import Piece, Pieces, join_bodies
from fasti.cluster.pointer import Place
from fasti.cluster.writer_actions import TRIMMED, Absence
from fasti.errors import Corruption, Gone
from fasti.storage.frames import StoredFrame

_READ_S = 1.0


class PieceReader:
    """What a stream has at places that are known to have been written."""

    def __init__(self, stream: PackStream, wait_s: float) -> None:
        self._stream, self._wait_s = stream, wait_s

    def pack(self, place: int, ahead: bool = False) -> Pack:
        """Raises `Gone` if it was trimmed, else `Corruption` if it is not there; `NoQuorum`."""
        name = self._stream.name
        found = insist(name, self._wait_s, lambda: self._stream.read(place, _READ_S, ahead))
        if not isinstance(found, Absence):
            return found
        if found is TRIMMED:
            raise Gone(f"the pack at {place} of {self._stream.name} was trimmed")
        raise self._corruption("has lost a pack", place)

    def frames(self, piece: Piece, ahead: bool = False) -> Iterator[StoredFrame]:
        """All frames of a piece's packs; those after its last are void."""
        if piece.last < piece.first:
            return iter(())
        packs = [self.pack(place, ahead) for place in range(piece.begin, piece.end + 1)]
        return frames_in(join_bodies(packs), self._stream.name, piece.end)

    def replay(self, pieces: Sequence[Piece], after: int, finished: int) -> Iterator[StoredFrame]:
        """The frames after one, up to the last that ends a group."""
        for piece in pieces:
            if piece.first > finished:
                return
            for frame in self.frames(piece, ahead=True):
                if after < frame.sequence <= min(piece.last, finished):
                    yield frame

    def frame(self, piece: Piece, sequence: int) -> StoredFrame:
        for frame in self.frames(piece):
            if frame.sequence == sequence:
                return frame
        raise self._corruption(f"has no frame {sequence}", piece.end)

    def older(self, places: Sequence[int], end: PackReader) -> Pieces:
        """The pieces at these places; ``end`` is how a reader must come out of them.

        The state of a reader at the first one was trimmed with what was before it, so it is taken from
        the pack itself; at the end it is compared.
        """
        first = self.pack(places[0], ahead=True)
        header = first.header
        reader = PackReader(header.epoch - header.is_start, 0, header.first_frame - 1)
        pieces = Pieces(Place(first.place - 1, reader, first.before))
        for place in places:
            pack = self.pack(place, ahead=True)
            verdict, reader = reader.take(pack.header)
            if verdict.what == "counts":
                pieces.take(pack, reader, self._stream.name)
        if reader != end:
            raise self._corruption("and its pointer contradict each other", places[-1])
        return pieces

    def _corruption(self, what: str, place: int) -> Corruption:
        name = self._stream.name
        return Corruption(f"{name} {what} at {place}", file=name, offset=place)
