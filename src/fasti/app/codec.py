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

from typing import Any, Protocol, get_args, runtime_checkable

from fasti.app.json_type import JsonType, StructType, excerpt, is_struct, plain
from fasti.app.verdicts import Undecodable
from fasti.errors import InvalidArgument

JSON = "application/json"
BYTES = "application/octet-stream"
BYTES_LIKE = (bytes, bytearray, memoryview)


@runtime_checkable
class Codec(Protocol):
    """What an app needs of a codec."""

    def encode(self, value: Any) -> tuple[bytes, str]:
        """The payload and its content type. Called by `later`."""

    def decode(self, payload: bytes, content_type: str | None, annotation: Any) -> Any:
        """What the handler takes, whose first parameter has this annotation (`Any` without one)."""


class JsonCodec:
    """JSON, both ways, by the handler's annotation: what `later` takes comes back as it was.

    Dates, times and lengths of time become ISO 8601, UUIDs and decimals text, bytes base64,
    dataclasses and models objects, sets arrays, keys of dictionaries text. Bytes alone are a payload
    that is ready, and travel as they are. Text that was sent without saying that it is JSON is read
    as text by a handler that takes `str`.
    """

    def __init__(self) -> None:
        self._types: dict[Any, JsonType | StructType] = {}

    def encode(self, value: Any) -> tuple[bytes, str]:
        """Any value that JSON can hold. Raises `invalid_argument` on others."""
        if isinstance(value, BYTES_LIKE):
            return bytes(value), BYTES
        from pydantic_core import PydanticSerializationError, to_json

        try:
            payload = to_json(value, by_alias=True, bytes_mode="base64", fallback=plain)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"it can't be encoded as JSON: {error}", field="value") from error
        return payload, JSON

    def encode_for(self, annotation: Any, value: Any) -> tuple[bytes, str]:
        """For a handler with this annotation, which gets the value as it was.

        Raises `invalid_argument` if it would not: then the value has another type.
        """
        if isinstance(value, BYTES_LIKE) and bytes not in (annotation, *get_args(annotation)):
            return self._checked(bytes(value), annotation), BYTES
        return self.type_of(annotation).encode(value), JSON

    def _checked(self, payload: bytes, annotation: Any) -> bytes:
        try:
            self.decode(payload, BYTES, annotation)
        except Undecodable as error:
            raise InvalidArgument(
                f"{excerpt(payload)} is sent as it is, and the handler could not read it: {error}",
                field="value",
            ) from None
        return payload

    def decode(self, payload: bytes, content_type: str | None, annotation: Any = Any) -> Any:
        """Raises `Undecodable` with what is wrong and where."""
        if annotation is str and not is_json(content_type):
            return _text(payload)
        return self.type_of(annotation).decode(payload)

    def type_of(self, annotation: Any) -> JsonType | StructType:
        """How an annotation is written and read; made once. Raises `invalid_argument`."""
        try:
            known_type = self._types.get(annotation)
        except TypeError:
            return JsonType(annotation)
        if known_type is None:
            new_type = StructType(annotation) if is_struct(annotation) else JsonType(annotation)
            known_type = self._types.setdefault(annotation, new_type)
        return known_type


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
        raise Undecodable(f"the payload is not text: {error}") from error
