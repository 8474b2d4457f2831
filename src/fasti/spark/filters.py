"""Filters that the broker can do itself, of those that Spark offers.

A filter is *taken* when the broker does all of it: Spark then doesn't look again. Others only narrow
what is read, and go back to Spark, which decides row by row: a list of ids becomes the range from its
first to its last. What is not understood goes back as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_STATES = frozenset(["scheduled", "ready", "leased", "dead"])
_WORDS_MAX = 1_000
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

NUMBER, MOMENT, WORD = "number", "moment", "word"


@dataclass(frozen=True, slots=True)
class Filterable:
    """A column by which the broker can filter, or at least narrow what it reads."""

    kind: str
    # Whether the broker's answer needs no second look.
    exact: bool = True


# What each view's filters can be about.
FILTERABLE: dict[str, dict[str, Filterable]] = {
    "messages": {
        "id": Filterable(NUMBER),
        "partition": Filterable(NUMBER),
        "due": Filterable(MOMENT),
        "state": Filterable(WORD),
        "owner": Filterable(WORD),
        "key": Filterable(WORD),
    },
    "log": {
        "partition": Filterable(NUMBER),
        "offset": Filterable(NUMBER),
        "created": Filterable(MOMENT, exact=False),
    },
    "kv": {"key": Filterable(WORD)},
    "changes": {
        "position": Filterable(NUMBER),
        "at": Filterable(MOMENT, exact=False),
        "op": Filterable(WORD),
        "topic": Filterable(WORD, exact=False),
    },
}
# Columns that always have a value: that they have one need not be asked.
_NEVER_NULL = {
    "messages": {"id", "partition", "due", "state", "version", "attempts", "priority"},
    "log": {"partition", "offset", "created"},
    "kv": {"key", "version", "created"},
    "changes": {"shard", "position", "row", "at", "op"},
}


@dataclass(slots=True)
class Pushed:
    """What is left to read after the filters that were understood."""

    view: str
    # Whole numbers by column: from, and up to but not including. Moments in microseconds.
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    words: dict[str, frozenset[str]] = field(default_factory=dict)
    prefix: str = ""

    @property
    def nothing(self) -> bool:
        """Whether no row can fit."""
        empty = any(low >= high for low, high in self.ranges.values())
        return empty or any(not words for words in self.words.values())

    def low(self, column: str) -> int | None:
        """The least that a column may be, if that is bounded."""
        low = self.ranges.get(column, (_LEAST, _MOST))[0]
        return None if low == _LEAST else low

    def high(self, column: str) -> int | None:
        """What a column must be below, if that is bounded."""
        high = self.ranges.get(column, (_LEAST, _MOST))[1]
        return None if high == _MOST else high

    def clip(self, column: str, low: int, high: int) -> tuple[int, int]:
        """A range, as far as the filters leave it."""
        least, most = self.ranges.get(column, (_LEAST, _MOST))
        return max(low, least), min(high, most)

    def between(self, column: str, low: int, high: int) -> None:
        """One more filter: the narrowest bounds count."""
        self.ranges[column] = self.clip(column, low, high)

    def one_of(self, column: str, words: frozenset[str]) -> None:
        """One more filter: what all of them allow."""
        self.words[column] = self.words[column] & words if column in self.words else words


def pushed(view: str, filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """What some of the filters leave to be read, and those that Spark has to do."""
    result = Pushed(view)
    rest = [part for part in filters if not _take(part, result)]
    return result, rest


def _take(part: Filter, result: Pushed) -> bool:
    """Whether the filter is done with; it may narrow what is read all the same."""
    attribute: tuple[str, ...] = getattr(part, "attribute", ())
    if len(attribute) != 1:
        return False
    column = attribute[0]
    if isinstance(part, IsNotNull):
        return column in _NEVER_NULL[result.view]
    kind_of = FILTERABLE[result.view].get(column)
    if kind_of is None:
        return False
    if kind_of.kind == WORD:
        return _take_words(column, part, result) and kind_of.exact
    return _take_range(column, kind_of.kind, part, result) and kind_of.exact


def _take_words(column: str, part: Filter, result: Pushed) -> bool:
    if isinstance(part, StringStartsWith):
        return result.view == "kv" and _take_prefix(part.value, result)
    if isinstance(part, (EqualTo, EqualNullSafe)):
        values: tuple[Any, ...] = (part.value,)
    elif isinstance(part, In):
        # Nothing is equal to null.
        values = tuple(value for value in part.value if value is not None)
    else:
        return False
    if len(values) > _WORDS_MAX or not all(isinstance(value, str) for value in values):
        return False
    words = frozenset(values)
    if column == "state":
        words &= _STATES
    # No name is empty, and what can't be written as UTF-8 isn't one either.
    words = frozenset(word for word in words if word and _is_text(word))
    result.one_of(column, words)
    return True


def _take_prefix(prefix: Any, result: Pushed) -> bool:
    if not isinstance(prefix, str) or result.prefix or "\0" in prefix or not _is_text(prefix):
        return False
    result.prefix = prefix
    return True


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _take_range(column: str, kind: str, part: Filter, result: Pushed) -> bool:
    if isinstance(part, In):
        values = [_number(value, kind) for value in part.value if value is not None]
        bounds = [value for value in values if value is not None]
        if len(bounds) < len(values):
            return False
        result.between(column, *((min(bounds), max(bounds) + 1) if bounds else (0, 0)))
        return len(set(bounds)) < 2
    at = _number(getattr(part, "value", None), kind)
    if at is None:
        return False
    if isinstance(part, (EqualTo, EqualNullSafe)):
        result.between(column, at, at + 1)
    elif isinstance(part, (GreaterThan, GreaterThanOrEqual)):
        result.between(column, at + isinstance(part, GreaterThan), _MOST)
    elif isinstance(part, (LessThan, LessThanOrEqual)):
        result.between(column, _LEAST, at + isinstance(part, LessThanOrEqual))
    else:
        return False
    return True


def _number(value: Any, kind: str) -> int | None:
    """A literal as the broker counts; None if it can't be compared so."""
    if kind == MOMENT:
        if not isinstance(value, datetime):
            return None
        # Spark hands moments over in UTC, with or without saying so.
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    # One of the bounds can't be told from none.
    return value if _LEAST < value < _MOST - 1 else None
