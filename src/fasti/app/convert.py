"""From JSON values to the types of annotations.

`converter(annotation)` is worked out once, when a handler is declared, so that an annotation that
can't be made from JSON is an error at import and not with the first message. The converters raise
`Mismatch`, which says where in the value what was wrong.

Fields that a dataclass doesn't have are left out: who sends may be newer than who handles. Values are
not bent to fit: `"7"` is no `int`. A whole number is a `float`.
"""

from __future__ import annotations

import base64
import collections.abc
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from fasti.errors import InvalidArgument

Convert = Callable[[Any], Any]

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class Mismatch(Exception):
    """A value is not what the annotation asks for."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what, path)
        self.what, self.path = what, path

    def below(self, step: str) -> Mismatch:
        """The same, seen from one level further out."""
        return Mismatch(self.what, step + self.path)

    def __str__(self) -> str:
        path = self.path.removeprefix(".")
        return f"{path}: {self.what}" if path else self.what


def converter(annotation: Any, making: dict[Any, list[Convert]] | None = None) -> Convert:
    """How to make what is annotated. Raises `invalid_argument` if JSON can't give it.

    `making` holds the classes that are being worked out, so that one may contain itself.
    """
    making = {} if making is None else making
    if annotation is Any or annotation is object:
        return lambda value: value
    if annotation is None or annotation is type(None):
        return _exactly(type(None), "null")
    if isinstance(annotation, NewType):
        return converter(annotation.__supertype__, making)
    origin = get_origin(annotation)
    if origin in (Annotated, Required, NotRequired):
        return converter(get_args(annotation)[0], making)
    if origin in (Union, types.UnionType):
        return _union([converter(each, making) for each in get_args(annotation)], annotation)
    if origin is Literal:
        return _literal(get_args(annotation))
    if isinstance(annotation, type) and annotation in _SCALARS:
        return _SCALARS[annotation]
    collection = _collection(origin or annotation, get_args(annotation), making)
    return collection or _class(annotation, making)


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(what: str, value: Any) -> Mismatch:
    return Mismatch(f"expected {what}, not {_shown(value)}")


# Scalars


def _exactly(kind: type, name: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _expected(name, value)
        return value

    return convert


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise _expected("a number", value)
    return float(value)


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, float, str):
        raise _expected("a decimal", value)
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise _expected("a decimal", value) from None


def _seconds(value: Any) -> timedelta:
    if type(value) not in (int, float):
        raise _expected("a number of seconds", value)
    return timedelta(seconds=value)


def _base64(value: Any) -> bytes:
    if type(value) is not str:
        raise _expected("bytes in base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise _expected("bytes in base64", value) from None


def _from_text(make: Callable[[str], Any], name: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise _expected(name, value)
        try:
            return make(value)
        except ValueError:
            raise _expected(name, value) from None

    return convert


_SCALARS: dict[type, Convert] = {
    str: _exactly(str, "text"),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    float: _float,
    bytes: _base64,
    Decimal: _decimal,
    timedelta: _seconds,
    UUID: _from_text(UUID, "a UUID"),
    datetime: _from_text(datetime.fromisoformat, "a date and time"),
    date: _from_text(date.fromisoformat, "a date"),
    time: _from_text(time.fromisoformat, "a time of day"),
}


def _literal(choices: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise _expected(f"one of {', '.join(map(repr, choices))}", value)

    return convert


def _union(members: list[Convert], annotation: Any) -> Convert:
    def convert(value: Any) -> Any:
        whys = []
        for member in members:
            try:
                return member(value)
            except Mismatch as error:
                whys.append(error)
        # One that went deeper tells more than "expected null".
        deepest = max(whys, key=lambda why: len(why.path))
        raise deepest if deepest.path else _expected(_named(annotation), value)

    return convert


# Collections


def _collection(kind: Any, inner: tuple[Any, ...], making: Any) -> Convert | None:
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        return _fixed([converter(each, making) for each in inner])
    if kind in _LISTS or kind in _SETS or kind is tuple:
        convert = converter(inner[0] if inner else Any, making)
        made = set if kind is collections.abc.Set else list if kind in _LISTS else kind
        return _items(made, convert)
    if kind in _MAPPINGS:
        keys, values = inner or (str, Any)
        return _mapping(converter(keys, making), converter(values, making))
    return None


def _items(kind: Callable[[Any], Any], convert: Convert) -> Convert:
    def each(values: list[Any]) -> collections.abc.Iterator[Any]:
        for index, value in enumerate(values):
            try:
                yield convert(value)
            except Mismatch as error:
                raise error.below(f"[{index}]") from None

    def convert_all(value: Any) -> Any:
        if type(value) is not list:
            raise _expected("an array", value)
        return kind(each(value))

    return convert_all


def _fixed(converts: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converts):
            raise _expected(f"an array of {len(converts)}", value)
        found = []
        for index, (one, each) in enumerate(zip(converts, value, strict=True)):
            try:
                found.append(one(each))
            except Mismatch as error:
                raise error.below(f"[{index}]") from None
        return tuple(found)

    return convert


def _mapping(keys: Convert, values: Convert) -> Convert:
    def convert(value: Any) -> Any:
        found = {}
        for name, each in _object(value).items():
            try:
                found[keys(name)] = values(each)
            except Mismatch as error:
                raise error.below(f".{name}") from None
        return found

    return convert


def _object(value: Any) -> Mapping[str, Any]:
    if type(value) is not dict:
        raise _expected("an object", value)
    return value


# Classes


def _class(annotation: Any, making: dict[Any, list[Convert]]) -> Convert:
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return _enum(kind)
        if hasattr(kind, "model_validate"):
            return _validated(annotation.model_validate, annotation)
        if hasattr(kind, "__struct_fields__"):
            return _struct(annotation)
        if hasattr(kind, "__pydantic_validator__"):
            return _adapted(annotation)
        if is_dataclass(kind) or is_typeddict(kind):
            return _once(kind, making)
    raise InvalidArgument(
        f"{_named(annotation)} can't be made from JSON: take bytes, a Message, plain values, a "
        "dataclass, a TypedDict or a model, or give a codec",
        field="codec",
    )


def _once(kind: type, making: dict[Any, list[Convert]]) -> Convert:
    if kind in making:
        # It contains itself: what is being made is there by the first call.
        made = making[kind]
        return lambda value: made[0](value)
    made = making[kind] = []
    made.append(_typed_dict(kind, making) if is_typeddict(kind) else _dataclass(kind, making))
    return made[0]


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidArgument(
            f"the annotations of {kind.__name__} can't be read: {error}", field="codec"
        ) from error


def _dataclass(kind: type, making: dict[Any, list[Convert]]) -> Convert:
    hints = _hints(kind)
    parts = []
    for each in fields(kind):
        if each.init:
            needed = each.default is MISSING and each.default_factory is MISSING
            parts.append((each.name, converter(hints[each.name], making), needed))

    def convert(value: Any) -> Any:
        given = _known(_object(value), parts)
        try:
            return kind(**given)
        except (ValueError, TypeError) as error:
            # A check of its own, in __post_init__.
            raise Mismatch(f"{kind.__name__}: {error}") from error

    return convert


def _typed_dict(kind: Any, making: dict[Any, list[Convert]]) -> Convert:
    parts = []
    for name, hint in _hints(kind).items():
        # Where annotations are text, `__required_keys__` has not seen what they say.
        said = {Required: True, NotRequired: False}.get(get_origin(hint))
        needed = name in kind.__required_keys__ if said is None else said
        parts.append((name, converter(hint, making), needed))

    def convert(value: Any) -> Any:
        return dict(_object(value)) | _known(value, parts)

    return convert


def _known(value: Mapping[str, Any], parts: list[tuple[str, Convert, bool]]) -> dict[str, Any]:
    found = {}
    for name, convert, needed in parts:
        if name in value:
            try:
                found[name] = convert(value[name])
            except Mismatch as error:
                raise error.below(f".{name}") from None
        elif needed:
            raise Mismatch("is missing", f".{name}")
    return found


def _enum(kind: type[Enum]) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _expected(f"one of {[each.value for each in kind]}", value) from None

    return convert


def _validated(validate: Convert, annotation: Any) -> Convert:
    """By a library whose errors are ValueErrors: pydantic, msgspec."""

    def convert(value: Any) -> Any:
        try:
            return validate(value)
        except ValueError as error:
            raise Mismatch(f"{_named(annotation)}: {error}") from error

    return convert


def _adapted(annotation: Any) -> Convert:
    from pydantic import TypeAdapter

    return _validated(TypeAdapter(annotation).validate_python, annotation)


def _struct(annotation: Any) -> Convert:
    import msgspec  # type: ignore[import-not-found, unused-ignore]

    def convert(value: Any) -> Any:
        return msgspec.convert(value, annotation)

    return _validated(convert, annotation)
