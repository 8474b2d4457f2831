"""What a handler takes, read from its annotations when it is declared.

The first parameter: `bytes` gets the payload, `Message` the message, anything else what the codec
makes of the payload. A second parameter annotated `Message` gets the message besides. A handler
without parameters only hears that something was due.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from fasti.app.codec import BYTES_LIKE, Codec, JsonCodec
from fasti.app.json_type import excerpt
from fasti.client.message import Message
from fasti.errors import InvalidArgument

Takes = Literal["nothing", "bytes", "message", "value"]
Arguments = Callable[[Any], tuple[Any, ...]]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerShape:
    """What a handler takes."""

    takes: Takes
    annotation: Any = Any
    with_message: bool = False
    is_async: bool = False


def shape_of(function: Callable[..., Any]) -> HandlerShape:
    """Reads a handler's parameters. Raises `invalid_argument` on those that nothing would fill."""
    try:
        hints = get_type_hints(function)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the annotations of {_name(function)} can't be read: {error}", field="handler"
        ) from error
    is_async = inspect.iscoroutinefunction(function)
    parameters = _to_fill(function, signature)
    if not parameters:
        return HandlerShape("nothing", is_async=is_async)
    first = hints.get(parameters[0].name, Any)
    with_message = len(parameters) == 2
    if first is Message:
        return HandlerShape("message", Message, is_async=is_async)
    if first is bytes:
        return HandlerShape("bytes", bytes, with_message, is_async)
    return HandlerShape("value", first, with_message, is_async)


def _to_fill(function: Callable[..., Any], signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameter for the payload, and the one for the message if there is one."""
    hints = get_type_hints(function)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        positional = parameter.kind in _POSITIONAL
        if (positional and not parameters) or (
            positional and len(parameters) == 1 and hints.get(parameter.name) is Message
        ):
            parameters.append(parameter)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise InvalidArgument(
                f"{_name(function)} has a parameter {parameter.name!r} that nothing would fill: a "
                "handler takes the payload, and the message as a second parameter annotated Message",
                field="handler",
            )
    return parameters


def arguments_of(shape: HandlerShape, codec: Codec) -> Arguments:
    """How a message becomes the handler's arguments."""
    if shape.takes == "nothing":
        return lambda message: ()
    if shape.takes == "message":
        return lambda message: (message,)
    first = _first(shape, codec)
    if shape.with_message:
        return lambda message: (first(message), message)
    return lambda message: (first(message),)


def _first(shape: HandlerShape, codec: Codec) -> Callable[[Any], Any]:
    if shape.takes == "bytes":
        return lambda message: message.payload
    annotation = shape.annotation
    if type(codec) is JsonCodec and annotation is not str:
        read = codec.type_of(annotation).decode
        return lambda message: read(message.payload)
    return lambda message: codec.decode(message.payload, message.content_type, annotation)


def payload_of(label: str, shape: HandlerShape, codec: Codec, value: Any) -> tuple[bytes, str]:
    """The payload, and its content type, from which the handler gets this value.

    Raises `invalid_argument` that names the handler if it would not, or would get another.
    """
    try:
        if type(codec) is not JsonCodec or shape.takes in ("message", "nothing"):
            return codec.encode(value)
        if shape.takes == "value":
            return codec.encode_for(shape.annotation, value)
        if not isinstance(value, BYTES_LIKE):
            raise InvalidArgument(f"expected bytes, not {excerpt(value)}", field="value")
        return codec.encode(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{label}.later: {error.message}", field="value") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
