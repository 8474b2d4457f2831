"""Places in the change feed: of one shard, or of all shards of a broker.

Each shard has a feed of its own, in order; over shards there is none. So where a reader is in the feeds
of several shards is a map: of each feed, the last frame that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fasti.errors import InvalidArgument
from fasti.protocol.feed_name import FeedName


class Position:
    """A place in the change feed. As text: `str(position)`, and back by `Position.parse`.

    `shard` has the shard's name and which life of its journal it is, as in `0.9f3c01d2ab45e678`: a
    journal that was restored or repaired begins a new life, in which this position means nothing.

    Where a broker has several shards a position is a place in the feed of each: `frames` has them all,
    and the text names them with commas. Of two such positions one is less than the other if it is so in
    a feed and not greater in any; positions in different feeds can't be compared.
    """

    __slots__ = ("_frames",)

    def __init__(self, shard: str, frame: int) -> None:
        self._frames: tuple[tuple[str, int], ...] = ((shard, frame),)

    @classmethod
    def of(cls, frames: Mapping[str, int]) -> Position:
        """From the frame of each feed. Raises `invalid_argument` if there is none, or a shard twice."""
        if not frames:
            raise InvalidArgument("a position names a feed", field="position")
        position = cls.__new__(cls)
        if len(frames) == 1:
            position._frames = tuple(frames.items())
            return position
        position._frames = tuple(sorted(frames.items(), key=lambda place: _order(place[0])))
        names = [_shard_name(feed) for feed, _ in position._frames]
        for name, following in pairwise(names):
            if name == following:
                raise InvalidArgument(f"a position names shard {name} once", field="position")
        return position

    @classmethod
    def parse(cls, text: str) -> Position:
        """Back from text. Raises `invalid_argument`."""
        frames: dict[str, int] = {}
        for place in text.split(","):
            shard, _, frame = place.partition(":")
            if not frame.isdecimal():
                raise InvalidArgument(
                    f"{text!r} is not a position in a change feed", field="position"
                )
            frames[str(FeedName.parse(shard))] = int(frame)
        return cls.of(frames)

    @property
    def frames(self) -> dict[str, int]:
        """Of each feed, the frame; by shards."""
        return dict(self._frames)

    @property
    def shard(self) -> str:
        """The feed. Raises `invalid_argument` if there are several."""
        return self._only()[0]

    @property
    def frame(self) -> int:
        """The place in the feed. Raises `invalid_argument` if there are several."""
        return self._only()[1]

    def _only(self) -> tuple[str, int]:
        if len(self._frames) > 1:
            raise InvalidArgument(
                f"this position is one in {len(self._frames)} shards: `frames` has each",
                field="position",
            )
        return self._frames[0]

    def moved(self, feed: str, frame: int) -> Position:
        """The same, but for one feed."""
        position = Position.__new__(Position)
        if len(self._frames) == 1:
            position._frames = ((feed, frame),)
        else:
            position._frames = tuple(
                (name, frame if name == feed else at) for name, at in self._frames
            )
        return position

    def __str__(self) -> str:
        return ",".join(f"{shard}:{frame}" for shard, frame in self._frames)

    def __repr__(self) -> str:
        if len(self._frames) > 1:
            return f"Position.of({self.frames})"
        ((shard, frame),) = self._frames
        return f"Position(shard={shard!r}, frame={frame})"

    def __eq__(self, other: object) -> bool:
        return self._frames == other._frames if isinstance(other, Position) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._frames)

    def __lt__(self, other: Position) -> bool:
        return self != other and self <= other

    def __le__(self, other: Position) -> bool:
        if len(self._frames) == len(other._frames) == 1:
            return self._frames <= other._frames
        theirs = other.frames
        if theirs.keys() != self.frames.keys():
            return False
        return all(frame <= theirs[feed] for feed, frame in self._frames)

    def __gt__(self, other: Position) -> bool:
        return other < self

    def __ge__(self, other: Position) -> bool:
        return other <= self

    def __getstate__(self) -> Any:
        return self._frames

    def __setstate__(self, frames: Any) -> None:
        self._frames = frames


@dataclass(frozen=True, slots=True)
class FeedBounds:
    """What the broker still has: everything behind `first`, up to `last`."""

    first: Position
    last: Position


def shard_number(feed: str) -> int:
    """The number of the shard that a feed is of. Raises `invalid_argument`."""
    name = _shard_name(feed)
    if not name.isdecimal():
        raise InvalidArgument(f"{feed!r} names no shard by its number", field="position")
    return int(name)


def by_shard(frames: Mapping[str, int], count: int, field: str = "position") -> list[Position]:
    """A position in each of so many shards, from a map with all of them.

    Raises `invalid_argument` if one is missing or there is none of that number: what isn't named could
    neither be begun anew nor left out without a doubt.
    """
    if count == 1 and len(frames) == 1:
        return [Position(*place) for place in frames.items()]
    places = {shard_number(feed): Position(feed, frame) for feed, frame in frames.items()}
    if len(frames) != len(places) or sorted(places) != list(range(count)):
        names = ", ".join(frames) or "none"
        raise InvalidArgument(
            f"a position in the feed of this broker names each of its {count} shards, and this one "
            f"has {names}",
            field=field,
        )
    return [places[number] for number in range(count)]


def _shard_name(feed: str) -> str:
    return feed.partition(".")[0]


def _order(feed: str) -> tuple[int, int, str]:
    """By number; those that have none come last."""
    name = _shard_name(feed)
    return (0, int(name), feed) if name.isdecimal() else (1, 0, feed)
