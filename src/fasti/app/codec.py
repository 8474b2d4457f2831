"""Codecs: how a value becomes a payload, and a payload what a handler takes.

JSON is the default. A codec of your own has two methods and may be given to an app or a handler:

    class Msgpack:
        def encode(self, value):
            return msgpack.packb(value), "application/msgpack"
        def decode(self, payload, content_type, annotation):
            return msgpack.unpackb(payload)

A codec holds no state that calls change; handlers call it from several threads at once. What `decode`
raises makes the message dead: trying again would not help.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from fasti.app.convert import Mismatch, converter
from fasti.app.verdicts import Undecodable
from fasti.errors import InvalidArgument

JSON = "application/json"
BYTES = "application/octet-stream"


@runtime_checkable
class Codec(Protocol):
    """What an app needs of a codec."""

    def encode(self, value: Any) -> tuple[bytes, str]:
        """The payload and its content type. Called by `later`."""

    def decode(self, payload: bytes, content_type: str | None, annotation: Any) -> Any:
        """What the handler takes, whose first parameter has this annotation (`Any` without one)."""


class JsonCodec:
    """JSON, both ways.

    Dates and times become ISO 8601, lengths of time seconds, UUIDs and decimals text, bytes base64,
    dataclasses and models objects, sets arrays; with an annotation they come back as they were.
    Bytes alone travel as they are. Text that somebody sent without saying that it is JSON is read as
    text by a handler that takes `str`.
    """

    def __init__(self) -> None:
        self._converters: dict[Any, Callable[[Any], Any]] = {}

    def encode(self, value: Any) -> tuple[bytes, str]:
        """Raises `invalid_argument` on what JSON can't hold."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value), BYTES
        try:
            text = json.dumps(
                value,
                default=_plain,
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
            )
            return text.encode(), JSON
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"no JSON can be made of it: {error}", field="value") from error

    def decode(self, payload: bytes, content_type: str | None, annotation: Any = Any) -> Any:
        """Raises `Undecodable` with what is wrong and where."""
        if annotation is str and not is_json(content_type):
            return _text(payload)
        try:
            value = json.loads(payload)
        except ValueError as error:
            kind = f" ({content_type})" if content_type else ""
            raise Undecodable(f"the payload{kind} is no JSON: {error}") from error
        try:
            return self.converter(annotation)(value)
        except Mismatch as error:
            raise Undecodable(f"the payload does not fit: {error}") from error

    def converter(self, annotation: Any) -> Callable[[Any], Any]:
        """How a JSON value becomes what is annotated; made once. Raises `invalid_argument`."""
        try:
            found = self._converters.get(annotation)
        except TypeError:
            return converter(annotation)
        if found is None:
            found = self._converters[annotation] = converter(annotation)
        return found


def is_json(content_type: str | None) -> bool:
    """Whether a content type says JSON: application/json, or something ending in +json."""
    if content_type is None:
        return False
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"the payload is no text: {error}") from error


def _plain(value: Any) -> Any:
    """What JSON has no form for, as something that it has one for."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal, PurePath)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):  # msgspec
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
