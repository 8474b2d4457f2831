"""Whatever type a handler takes, what `later` accepts comes back as it was."""

from __future__ import annotations

import dataclasses
import keyword
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from hypothesis import assume, given
from hypothesis import strategies as st

from fasti.app.codec import JSON, JsonCodec
from fasti.app.verdicts import Undecodable
from fasti.errors import InvalidArgument

Typed = tuple[Any, st.SearchStrategy[Any]]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXT,
    bytes: st.binary(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    UUID: st.uuids(),
    date: st.dates(),
    datetime: st.datetimes(timezones=st.sampled_from([None, UTC])),
    time: st.times(),
    timedelta: st.timedeltas(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
}
scalars: st.SearchStrategy[Typed] = st.sampled_from(sorted(SCALARS.items(), key=str))
names = st.from_regex("[a-z][a-z_]{0,5}", fullmatch=True).filter(lambda n: not keyword.iskeyword(n))


@st.composite
def classes(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    parts = draw(st.dictionaries(names, inner, min_size=1, max_size=4))
    made = dataclasses.make_dataclass("Made", [(name, kind) for name, (kind, _) in parts.items()])
    return made, st.builds(made, **{name: values for name, (_, values) in parts.items()})


def larger(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=4))),
        inner.map(lambda t: (t[0] | None, st.none() | t[1])),
        st.tuples(scalars, inner).map(
            lambda t: (dict[t[0][0], t[1][0]], st.dictionaries(t[0][1], t[1][1], max_size=4))
        ),
        st.tuples(inner, inner).map(
            lambda t: (tuple[t[0][0], t[1][0]], st.tuples(t[0][1], t[1][1]))
        ),
        scalars.map(lambda t: (frozenset[t[0]], st.frozensets(t[1], max_size=4))),
        classes(inner),
    )


typed = st.recursive(scalars, larger, max_leaves=6)


@given(st.data())
def test_what_is_accepted_comes_back(data: st.DataObject) -> None:
    annotation, values = data.draw(typed)
    value = data.draw(values)
    codec = JsonCodec()
    payload, content_type = codec.encode_for(annotation, value)
    assert content_type == JSON or annotation is bytes
    assert codec.decode(payload, content_type, annotation) == value


@given(st.data())
def test_another_types_value_comes_back_or_is_refused(data: st.DataObject) -> None:
    """Never a payload that the handler can't read: that would be a dead message."""
    (annotation, _), (_, values) = data.draw(typed), data.draw(typed)
    value = data.draw(values)
    codec = JsonCodec()
    try:
        payload, content_type = codec.encode_for(annotation, value)
    except InvalidArgument:
        return
    codec.decode(payload, content_type, annotation)


@given(typed, st.binary())
def test_any_payload_is_read_or_refused(kind: Typed, payload: bytes) -> None:
    assume(kind[0] is not str)
    with suppress(Undecodable):
        JsonCodec().decode(payload, None, kind[0])
