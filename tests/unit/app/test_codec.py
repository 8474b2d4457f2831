"""Values survive JSON, and what doesn't fit says where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import numpy as np
import pydantic
import pytest

from fasti.app.codec import BYTES, JSON, JsonCodec, is_json
from fasti.app.verdicts import Undecodable
from fasti.errors import InvalidArgument

CODEC = JsonCodec()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item]
    made: datetime | None = None
    tags: frozenset[str] = frozenset()
    notes: dict[str, float] = field(default_factory=dict)


@dataclass
class Node:
    value: int
    below: list[Node] = field(default_factory=list)


@dataclass
class Checked:
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError("share is from 0 to 1")


class Address(TypedDict):
    city: str
    floor: NotRequired[int]


class Model(pydantic.BaseModel):
    id: int
    when: datetime


OrderId = NewType("OrderId", int)


def back(value: Any, annotation: Any) -> Any:
    payload, content_type = CODEC.encode(value)
    assert content_type == JSON
    return CODEC.decode(payload, content_type, annotation)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, Any),
        ({"a": 1}, dict),
        ({"a": 1}, dict[str, int]),
        ({"a": 1}, Mapping[str, int]),
        ([1, 2], list),
        ([1, 2], Sequence[int]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ({1, 2}, set[int]),
        ("text", str),
        (7, int),
        (7, OrderId),
        (7, Annotated[int, "metres"]),
        (None, None),
        (None, int | None),
        (2, float),
        (True, bool),
        (b"\x00\xff", bytes | None),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), datetime),
        (date(2026, 3, 1), date),
        (time(9, 30), time),
        (timedelta(hours=1.5), timedelta),
        (UUID(int=7), UUID),
        (Decimal("1.10"), Decimal),
        (Colour.BLUE, Colour),
        (Level.HIGH, Level),
        ("red", Literal["red", "blue"]),
        (Item("a", Decimal("1.10")), Item),
        (Order(7, [Item("a", Decimal(1), 2)], datetime(2026, 3, 1, tzinfo=UTC)), Order),
        (Order(7, [], tags=frozenset({"x"}), notes={"y": 1.5}), Order),
        (Node(1, [Node(2), Node(3, [Node(4)])]), Node),
        ({"city": "Rome", "floor": 2}, Address),
        ({"city": "Rome"}, Address),
        (Model(id=1, when=datetime(2026, 3, 1, tzinfo=UTC)), Model),
        ([Item("a", Decimal(1))], list[Item]),
    ],
    ids=str,
)
def test_a_value_comes_back_as_it_was(value: Any, annotation: Any) -> None:
    if isinstance(value, bytes):
        # Alone they travel as they are; inside of something as base64.
        assert back([value], list[annotation]) == [value]
        return
    found = back(value, annotation)
    assert found == value
    assert type(found) is type(value) or annotation is float


def test_bytes_travel_as_they_are() -> None:
    assert CODEC.encode(b"\x00raw") == (b"\x00raw", BYTES)
    assert CODEC.encode(memoryview(b"raw")) == (b"raw", BYTES)


def test_numpy_scalars_are_numbers() -> None:
    assert CODEC.encode({"n": np.int64(7)}) == (b'{"n":7}', JSON)


@pytest.mark.parametrize(
    ("payload", "annotation", "why"),
    [
        ({"items": []}, Order, "id: is missing"),
        ({"id": "7", "items": []}, Order, "id: expected a whole number, not '7'"),
        ({"id": True, "items": []}, Order, "id: expected a whole number, not True"),
        (
            {"id": 7, "items": [{"name": "a", "price": "x"}]},
            Order,
            "items[0].price: expected a dec",
        ),
        ({"id": 7, "items": {}}, Order, "items: expected an array, not {}"),
        ({"id": 7, "items": [], "notes": {"y": "z"}}, Order, "notes.y: expected a number"),
        ([], Order, "expected an object, not []"),
        ({"share": 2}, Checked, "Checked: share is from 0 to 1"),
        ({"value": 1, "below": [{}]}, Node, "below[0].value: is missing"),
        ({"floor": 2}, Address, "city: is missing"),
        ("green", Colour, "expected one of ['red', 'blue'], not 'green'"),
        ("green", Literal["red"], "expected one of 'red', not 'green'"),
        ("x", int | None, "expected int | None, not 'x'"),
        ([1], tuple[int, str], "expected an array of 2, not [1]"),
        ("yesterday", datetime, "expected a date and time, not 'yesterday'"),
        ("%", list[bytes], "expected an array"),
        (["%"], list[bytes], "[0]: expected bytes in base64"),
        ({"id": "x", "when": "2026-03-01T00:00:00Z"}, Model, "Model: 1 validation error"),
    ],
    ids=str,
)
def test_what_does_not_fit_says_where(payload: Any, annotation: Any, why: str) -> None:
    with pytest.raises(Undecodable) as caught:
        CODEC.decode(json.dumps(payload).encode(), JSON, annotation)
    assert f"the payload does not fit: {why}" in str(caught.value)


def test_a_newer_sender_may_add_fields() -> None:
    assert CODEC.decode(b'{"name": "a", "price": "1", "new": 2}', JSON, Item) == Item(
        "a", Decimal(1)
    )
    kept = CODEC.decode(b'{"city": "Rome", "new": 2}', JSON, Address)
    assert kept == {"city": "Rome", "new": 2}


def test_text_without_a_content_type_is_text() -> None:
    assert CODEC.decode(b"hello", None, str) == "hello"
    assert CODEC.decode(b'"hello"', JSON, str) == "hello"
    with pytest.raises(Undecodable, match="no text"):
        CODEC.decode(b"\xff", "text/plain", str)


def test_what_is_no_json_says_so() -> None:
    with pytest.raises(Undecodable, match=r"the payload \(text/plain\) is no JSON"):
        CODEC.decode(b"hello", "text/plain", dict)


def test_what_json_cannot_hold_is_refused() -> None:
    class Opaque:
        pass

    for value in (Opaque(), float("nan"), {1: {"a": Opaque()}}):
        with pytest.raises(InvalidArgument, match="no JSON"):
            CODEC.encode(value)


def test_an_annotation_that_json_cannot_give_is_refused_when_it_is_met() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidArgument, match="Opaque can't be made from JSON"):
        CODEC.converter(list[Opaque])


def test_content_types_of_json() -> None:
    assert is_json("application/json; charset=utf-8")
    assert is_json("application/cloudevents+json")
    assert not is_json("text/plain")
    assert not is_json(None)
