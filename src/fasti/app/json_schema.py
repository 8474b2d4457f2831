"""Which types come back from JSON as they were: decided when a handler is declared.

pydantic describes a type as a tree of nodes. `readable` looks through it for what JSON can write and
never read back (functions, iterators, dictionaries whose keys are tuples), and refuses the type with
what to write instead. It returns the tree to decode with: the same, but for lengths of time, which may
also be a number of seconds, as earlier versions wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fasti.errors import InvalidArgument

_UNREADABLE = {
    "arguments": "a signature",
    "arguments-v3": "a signature",
    "call": "a call",
    "callable": "a function",
    "generator": "an iterator: write list[...] or Sequence[...]",
    "is-instance": "an object of a class that pydantic doesn't know",
    "is-subclass": "a class",
}
# Keys are text in JSON: these types have exactly one text for each value.
_KEYS = frozenset(
    [
        "any",
        "bool",
        "bytes",
        "date",
        "datetime",
        "decimal",
        "float",
        "int",
        "multi-host-url",
        "str",
        "time",
        "timedelta",
        "url",
        "uuid",
    ]
)
_SCALARS = (str, int, float, bool, type(None))
# Parts of a node that don't describe what is read from JSON.
_ASIDE = frozenset(
    [
        "cls",
        "config",
        "default",
        "expected",
        "function",
        "members",
        "metadata",
        "python_schema",
        "serialization",
    ]
)


def readable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema to decode with. Raises `invalid_argument` on what can't come back."""
    definitions = {
        definition["ref"]: definition
        for definition in schema.get("definitions", ())
        if schema["type"] == "definitions"
    }
    copy: dict[str, Any] = _node(schema, definitions)
    return copy


def _node(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_node(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        # Fields or choices by their names, any of which may be one of ours.
        return {name: _node(part, definitions) for name, part in node.items()}
    _check(kind, node, definitions)
    copy = {
        name: part if name in _ASIDE else _node(part, definitions) for name, part in node.items()
    }
    if kind == "timedelta":
        copy["strict"] = False
    return copy


def _check(kind: str, node: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
    if kind in _UNREADABLE:
        raise InvalidArgument(f"JSON has no form for {_UNREADABLE[kind]}", field="codec")
    if kind == "enum":
        _check_members(node["members"])
    if kind == "dict" and "keys_schema" in node:
        _check_key(node["keys_schema"], definitions)


def _check_members(members: Iterable[Any]) -> None:
    for member in members:
        if not isinstance(member.value, _SCALARS):
            raise InvalidArgument(
                f"{member} has the value {member.value!r}, which JSON doesn't give back: use text or "
                "numbers as the values of an enum",
                field="codec",
            )


def _check_key(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
    while (inner := _inner(node, definitions)) is not None:
        node = inner
    kind = node["type"]
    if kind == "enum":
        _check_members(node["members"])
    elif kind == "literal":
        if not all(type(value) is str for value in node["expected"]):
            raise _no_key("literals that are not text")
    elif kind not in _KEYS:
        raise _no_key(f"the type {kind!r}")


def _no_key(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"keys of JSON objects are text, which {what} can't be read back from: give a dictionary "
        "keys of one type such as str, int, UUID, date or an enum, or send a list of pairs",
        field="codec",
    )


def _inner(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a node that only wraps another is about; None if it stands for itself."""
    if node["type"] == "definition-ref":
        return definitions.get(node["schema_ref"])
    for part in ("strict_schema", "json_schema", "schema"):
        if isinstance(inner := node.get(part), Mapping) and node["type"] != "nullable":
            return inner
    return None
