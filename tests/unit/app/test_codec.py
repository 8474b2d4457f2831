"""Values survive JSON, and what doesn't fit says where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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


@dataclass
class Trip:
    wait: timedelta
    data: bytes
    levels: dict[int, Level]


@dataclass
class Keyed:
    rows: list[dict[tuple[int, int], str]]


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str


@dataclass(eq=False)
class Unequal:
    n: int
    below: list[Unequal]


class Pair(Enum):
    ONE = (1, 2)


OrderId = NewType("OrderId", int)


def back(value: Any, annotation: Any) -> Any:
    payload, content_type = CODEC.encode_for(annotation, value)
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
        (None, type(None)),
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
        ({"id": "7", "items": []}, Order, "id: expected a valid integer, not '7'"),
        ({"id": True, "items": []}, Order, "id: expected a valid integer, not True"),
        (
            {"id": 7, "items": [{"name": "a", "price": "x"}]},
            Order,
            "items[0].price: expected a valid decimal, not 'x'",
        ),
        ({"id": 7, "items": {}}, Order, "items: expected a valid array, not {}"),
        (
            {"id": 7, "items": [], "notes": {"y": "z"}},
            Order,
            "notes.y: expected a valid number, not 'z'",
        ),
        ([], Order, "expected an object, not []"),
        ({"share": 2}, Checked, "Value error, share is from 0 to 1"),
        ({"value": 1, "below": [{}]}, Node, "below[0].value: is missing"),
        ({"floor": 2}, Address, "city: is missing"),
        ("green", Colour, "expected 'red' or 'blue', not 'green'"),
        ("green", Literal["red"], "expected 'red', not 'green'"),
        ("x", int | None, "expected a valid integer, not 'x'"),
        ([1], tuple[int, str], "[1]: is missing"),
        ("yesterday", datetime, "expected a valid datetime"),
        ("%", list[bytes], "expected a valid array"),
        (["%"], list[bytes], "[0]: Data should be valid base64"),
        ({"id": "x", "when": "2026-03-01T00:00:00Z"}, Model, "id: expected a valid integer"),
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
    assert CODEC.decode(b'{"city": "Rome", "new": 2}', JSON, Address) == {"city": "Rome"}


def test_text_without_a_content_type_is_text() -> None:
    assert CODEC.decode(b"hello", None, str) == "hello"
    assert CODEC.decode(b'"hello"', JSON, str) == "hello"
    with pytest.raises(Undecodable, match="not text"):
        CODEC.decode(b"\xff", "text/plain", str)


def test_what_is_no_json_says_so() -> None:
    with pytest.raises(Undecodable, match="the payload is not JSON: expected value"):
        CODEC.decode(b"hello", "text/plain", dict)


class Opaque:
    pass


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (Opaque(), {1: {"a": Opaque()}}):
        with pytest.raises(InvalidArgument, match="as JSON"):
            CODEC.encode(value)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({1: "one", 2: "two"}, dict[int, str]),
        ({Level.LOW: [1]}, dict[Level, list[int]]),
        ({Colour.RED: 1.5}, dict[Colour, float]),
        ({UUID(int=7): date(2026, 3, 1)}, dict[UUID, date]),
        ({datetime(2026, 3, 1, tzinfo=UTC): {7: True}}, dict[datetime, dict[int, bool]]),
        ({timedelta(days=-3, microseconds=7): b"\xff"}, dict[timedelta, bytes]),
        (timedelta(days=99_999, microseconds=1), timedelta),
        (Trip(timedelta(minutes=5), b"\xff\x00", {3: Level.HIGH}), Trip),
        ([Trip(timedelta(0), b"", {})], list[Trip] | None),
    ],
    ids=str,
)
def test_keys_and_values_of_any_scalar_type_come_back(value: Any, annotation: Any) -> None:
    assert back(value, annotation) == value


@pytest.mark.parametrize(
    ("payload", "annotation", "value"),
    [
        (b"5400.0", timedelta, timedelta(hours=1.5)),
        (
            b'{"wait":1.5,"data":"+//+","levels":{}}',
            Trip,
            Trip(timedelta(seconds=1.5), b"\xfb\xff\xfe", {}),
        ),
        (
            b'{"id":1,"when":"2026-03-01T00:00:00Z"}',
            Model,
            Model(id=1, when=datetime(2026, 3, 1, tzinfo=UTC)),
        ),
        (b"[1.5,2]", list[Decimal], [Decimal("1.5"), Decimal(2)]),
        (b'{"city":"Rome","floor":2}', Address, {"city": "Rome", "floor": 2}),
        (b'["red"]', set[Colour], {Colour.RED}),
    ],
    ids=str,
)
def test_what_earlier_versions_wrote_is_read(payload: bytes, annotation: Any, value: Any) -> None:
    assert CODEC.decode(payload, JSON, annotation) == value


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (list[Opaque], "Opaque. can't be made from JSON"),
        (dict[tuple[int, int], str], "keys of JSON objects are text"),
        (dict[int | str, str], "keys of JSON objects are text"),
        (dict[int | None, str], "keys of JSON objects are text"),
        (dict[Literal[1, 2], str], "keys of JSON objects are text"),
        (list[dict[Item, str]], "keys of JSON objects are text"),
        (Keyed, "keys of JSON objects are text"),
        (Pair, r"Pair.ONE has the value \(1, 2\)"),
        (Iterable[int], r"an iterator: write list"),
        (Callable[[], None], "a function"),
        (type[int], "a class"),
    ],
    ids=str,
)
def test_a_type_that_cannot_come_back_is_refused(annotation: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        CODEC.type_of(annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "why"),
    [
        ("7", int, "expected a valid integer, not '7'"),
        (7, str, "expected a valid string, not 7"),
        (None, Item, "expected an object, not None"),
        (Item("a", "x"), Item, "price: expected a valid decimal, not 'x'"),
        ({"name": "a", "price": "x"}, Item, "price: expected a valid decimal"),
        ({"name": "a"}, Item, "price: is missing"),
        (float("nan"), float | None, "would come back as None"),
        (float("inf"), Any, "would come back as None"),
        ({1: 2}, dict, "would come back as {'1': 2}"),
        ({1: 2}, Any, "would come back as {'1': 2}"),
        (datetime(2026, 3, 1, tzinfo=UTC), Any, "would come back as '2026-03-01"),
        (Dog("rex"), Cat | Dog, r"Dog\(name='rex'\) would come back as Cat\(name='rex'\)"),
        (Colour.RED, Colour | str, "would come back as 'red'"),
        ("2026-03-01T00:00:00Z", datetime | str, "would come back as datetime"),
        (b"hello", Any, "is sent as it is, and the handler could not read it"),
        (b"{}", Item, "name: is missing"),
        ({"city": "Rome", "new": 2}, Address, "would come back as"),
    ],
    ids=str,
)
def test_a_value_that_would_not_come_back_is_the_callers_error(
    value: Any, annotation: Any, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        CODEC.encode_for(annotation, value)


def test_the_form_of_an_object_may_be_given_for_it() -> None:
    assert back({"name": "a", "price": "1.10"}, Item) == Item("a", Decimal("1.10"))
    assert back([{"id": 1, "when": "2026-03-01T00:00:00Z"}], list[Model])[0].id == 1
    assert CODEC.encode_for(Item, b'{"name": "a", "price": 1}')[1] == BYTES
    assert back({"n": np.int64(7), "m": (1, 2)}, dict[str, Any]) == {"n": 7, "m": [1, 2]}


def test_objects_that_are_never_equal_come_back_too() -> None:
    found = back(Unequal(3, [Unequal(4, [])]), Unequal)
    assert (found.n, found.below[0].n) == (3, 4)


def test_content_types_of_json() -> None:
    assert is_json("application/json; charset=utf-8")
    assert is_json("application/cloudevents+json")
    assert not is_json("text/plain")
    assert not is_json(None)


def test_structs_of_msgspec() -> None:
    msgspec = pytest.importorskip("msgspec")
    order = msgspec.defstruct("Order", [("id", int), ("notes", dict[int, str])])
    assert back(order(7, {1: "a"}), order) == order(7, {1: "a"})
    with pytest.raises(InvalidArgument, match="Expected `int`"):
        CODEC.encode_for(order, order("7", {}))
    with pytest.raises(Undecodable, match="Expected `int`"):
        CODEC.decode(b'{"id": "7", "notes": {}}', JSON, order)
    with pytest.raises(Undecodable, match="does not fit"):
        CODEC.decode(b"hello", JSON, order)
