"""What a position belongs to: a shard, and a life of its journal.

A shard keeps its name. Its journal is begun anew by a restore, a repair, a reset of the clock or a
clone, and the incarnation, which is drawn then, tells its lives apart: a position means something in
one of them only. As text both stand together, `0.9f3c01d2ab45e678`, wherever a position is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fasti.errors import InvalidArgument

# A shard's name has no colon: in a position's text the frame stands behind one.
_TEXT = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9a-f]{16})")
# Before shards had names, positions had the incarnation alone.
_NAMELESS = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class FeedName:
    """The shard's name, and the incarnation in hexadecimal digits."""

    shard: str
    incarnation: str

    @classmethod
    def parse(cls, text: str) -> FeedName:
        """Back from text. Raises `invalid_argument`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            what = "is not the name of a change feed"
            if is_nameless(text):
                what = "was written by an older version, which did not name the shard: begin anew"
            raise InvalidArgument(f"{text!r} {what}", field="shard")
        return cls(*match.groups())

    def __str__(self) -> str:
        return f"{self.shard}.{self.incarnation}"


def is_feed_name(text: str) -> bool:
    """Whether `FeedName.parse` takes it."""
    return _TEXT.fullmatch(text) is not None


def is_nameless(text: str) -> bool:
    """Whether an older version wrote it."""
    return _NAMELESS.fullmatch(text) is not None
