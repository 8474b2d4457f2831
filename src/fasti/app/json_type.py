"""One type and its JSON, both ways, by one description: what `later` writes the handler can read.

pydantic does the work. Values are not bent to fit: `"7"` is not an `int`, except inside of pydantic models,
which have rules of their own. `encode` reads its own writing back before it lets it go, so a value that
would not come back as it was is the caller's error and never a dead message. In place of an object
(a dataclass, a model) its JSON form may be given: a dictionary.

Fields that a class doesn't have are left out: the sender may be newer than the handler. Any thread may
use a type; pydantic is imported with the first.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

from fasti.app.json_schema import readable
from fasti.app.verdicts import Undecodable
from fasti.errors import InvalidArgument

_SHOWN_MAX = 3
_CONFIG: dict[str, Any] = {
    "strict": True,
    "allow_inf_nan": False,
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
}


class JsonType:
    """The JSON of one annotation. Raises `invalid_argument` if it can't make the way both ways."""

    def __init__(self, annotation: Any) -> None:
        from pydantic_core import SchemaSerializer, SchemaValidator

        self.annotation = annotation
        self.name = type_name(annotation)
        schema = _schema(annotation, self.name)
        try:
            self._read = SchemaValidator(readable(schema), _CONFIG).validate_json  # type: ignore[arg-type]
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{self.name} can't come back from JSON: {error.message}", field="codec"
            ) from None
        self._write = SchemaSerializer(schema, _CONFIG).to_json  # type: ignore[arg-type]

    def encode(self, value: Any) -> bytes:
        """Raises `invalid_argument` with what is wrong, and where, if it is no value of the type."""
        from pydantic_core import PydanticSerializationError

        try:
            payload = self._write(
                value, by_alias=True, round_trip=True, warnings=False, fallback=plain
            )
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"it can't be encoded as JSON: {error}", field="value") from error
        decoded = self._decode(payload, lambda why: InvalidArgument(why, field="value"))
        if not _same(value, decoded):
            raise InvalidArgument(
                f"expected {self.name}, and {excerpt(value)} would come back as {excerpt(decoded)}: "
                "annotate the handler's parameter with its exact type, or send plain JSON values",
                field="value",
            )
        return payload

    def decode(self, payload: bytes) -> Any:
        """Raises `Undecodable` with what is wrong, and where."""
        return self._decode(payload, lambda why: Undecodable(f"the payload does not fit: {why}"))

    def _decode(self, payload: bytes, refusal: Callable[[str], Exception]) -> Any:
        from pydantic import ValidationError

        try:
            return self._read(payload)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            if problems[0]["type"] == "json_invalid":
                why = problems[0]["msg"].removeprefix("Invalid JSON: ")
                raise Undecodable(f"the payload is not JSON: {why}") from None
            whys = [_described(problem) for problem in problems[:_SHOWN_MAX]]
            if len(problems) > _SHOWN_MAX:
                whys.append(f"and {len(problems) - _SHOWN_MAX} more")
            raise refusal("; ".join(whys)) from None


class StructType:
    """The same for a msgspec struct, which has a JSON of its own."""

    def __init__(self, annotation: Any) -> None:
        import msgspec  # type: ignore[import-not-found, unused-ignore]

        self._read = msgspec.json.Decoder(annotation).decode
        self._write = msgspec.json.Encoder().encode

    def encode(self, value: Any) -> bytes:
        """Raises `invalid_argument`."""
        try:
            payload: bytes = self._write(value)
            decoded = self._read(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(str(error), field="value") from error
        if not _same(value, decoded):
            raise InvalidArgument(
                f"{excerpt(value)} would come back as {excerpt(decoded)}", field="value"
            )
        return payload

    def decode(self, payload: bytes) -> Any:
        """Raises `Undecodable`."""
        try:
            return self._read(payload)
        except ValueError as error:
            raise Undecodable(f"the payload does not fit: {error}") from None


def _schema(annotation: Any, name: str) -> Any:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError
    from typing_extensions import TypeAliasType

    try:
        # By another name: a configuration isn't taken together with a class that could have its own,
        # and from here it reaches the dataclasses inside.
        alias: Any = TypeAliasType("Payload", _for_pydantic(annotation))
        adapter: Any = TypeAdapter(alias, config=ConfigDict(**_CONFIG))  # type: ignore[typeddict-item]
    except (PydanticUserError, NameError, TypeError) as error:
        raise InvalidArgument(
            f"{name} can't be made from JSON: take bytes, a Message, plain values, a dataclass, a "
            f"TypedDict or a pydantic model, or give a codec ({str(error).splitlines()[0]})",
            field="codec",
        ) from error
    return adapter.core_schema


def _for_pydantic(annotation: Any) -> Any:
    """Before Python 3.12 pydantic takes no `typing.TypedDict`, only that of typing_extensions."""
    if sys.version_info >= (3, 12):
        return annotation
    if is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _typed_dict(annotation)
    inner = get_args(annotation)
    arguments = tuple(_for_pydantic(part) for part in inner)
    if arguments == inner:
        return annotation
    if hasattr(annotation, "copy_with"):
        return annotation.copy_with(arguments)
    if isinstance(annotation, types.UnionType):
        return functools.reduce(operator.or_, arguments)
    origin: Any = get_origin(annotation)
    return origin[arguments]


@functools.cache
def _typed_dict(kind: Any) -> Any:
    from typing_extensions import TypedDict

    hints = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        # Where annotations are text, `__required_keys__` has not seen what they say.
        mark: Any = get_origin(hint)
        if mark not in (Required, NotRequired):
            mark = Required if name in kind.__required_keys__ else NotRequired
        else:
            hint = get_args(hint)[0]
        hints[name] = mark[_for_pydantic(hint)]
    return TypedDict(kind.__name__, hints)  # type: ignore[operator]


def plain(value: Any) -> Any:
    """For values that pydantic has no JSON for. Raises `TypeError`."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _same(value: Any, decoded: Any) -> bool:
    """Whether what was read back is what was written, or is the object of which that is the form."""
    if type(value) is type(decoded) and value == decoded:
        return True
    if isinstance(value, Mapping) and not isinstance(decoded, Mapping):
        return hasattr(decoded, "__dict__") or is_dataclass(decoded) or is_struct(decoded)
    if isinstance(value, Mapping):
        return value.keys() == decoded.keys() and all(
            _same(value[key], decoded[key]) for key in value
        )
    if isinstance(value, (list, tuple)) and isinstance(decoded, (list, tuple)):
        return len(value) == len(decoded) and all(map(_same, value, decoded))
    if isinstance(decoded, _PLAIN) and value == decoded:
        return True
    # Objects of a class that doesn't say when two of them are equal.
    return (
        type(value) is type(decoded)
        and bool(_parts(value))
        and _same(_parts(value), _parts(decoded))
    )


_PLAIN = (str, int, float, bool, bytes, set, frozenset)


def _parts(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return getattr(value, "__dict__", {})


def is_struct(value: Any) -> bool:
    """Whether it is a struct of msgspec, or its class."""
    return hasattr(value, "__struct_fields__")


def type_name(annotation: Any) -> str:
    """How an annotation is written."""
    text = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    return text.removeprefix("typing.")


def excerpt(value: Any) -> str:
    """A value in an error's text."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _described(problem: Mapping[str, Any]) -> str:
    """`items[0].price: expected a valid decimal, not 'x'`."""
    path = ""
    for step in problem["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    what = problem["msg"]
    if problem["type"] == "missing":
        what = "is missing"
    elif what.startswith("Input should be "):
        what = f"expected {what.removeprefix('Input should be ')}, not {excerpt(problem['input'])}"
    path = path.removeprefix(".")
    return f"{path}: {what}" if path else what
