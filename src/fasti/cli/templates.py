"""What `fasti consume` prints of a message: a named form, or a template with names in braces."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

import typer

from fasti.cli import moments, payloads

FIELDS = (
    *("id", "key", "due", "priority", "attempts", "version", "created", "content_type", "subject"),
    *("partition", "offset", "payload"),
)
# Of a row that is read from a log, without a lease.
LOG_FIELDS = ("partition", "offset", "key", "created", "content_type", "subject", "payload")
FORMS = ("text", "raw", "json")
# The bytes to write for a message.
Form = Callable[[Any], bytes]


def format_option(fields: tuple[str, ...]) -> Any:
    """`--format`, of commands that print messages with these fields."""
    template = " ".join(f"{{{field}}}" for field in fields)
    return typer.Option("--format", help=f"{', '.join(FORMS)}, or a template of {template}.")


def form(name: str, terminal: bool) -> Form:
    """The form of that name, or a template, for messages that were delivered."""
    return _form(name, terminal, FIELDS, _as_json)


def log_form(name: str, terminal: bool) -> Form:
    """The same for rows that are read from a log."""
    return _form(name, terminal, LOG_FIELDS, _log_row)


def _form(
    name: str, terminal: bool, fields: tuple[str, ...], to_dict: Callable[[Any], dict[str, Any]]
) -> Form:
    if name == "raw":
        return lambda message: message.payload
    if name == "json":
        return lambda message: json.dumps(to_dict(message), ensure_ascii=False).encode() + b"\n"
    return _template("{payload}" if name == "text" else name, terminal, fields)


def _log_row(message: Any) -> dict[str, Any]:
    return {
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "key": message.key,
        "created": moments.iso(message.created_us),
        "headers": message.headers,
        "content_type": message.content_type,
        "subject": message.subject,
        **payloads.as_json(message.payload),
    }


def _as_json(message: Any) -> dict[str, Any]:
    group = getattr(message, "group", "")
    place = {"partition": message.partition, "offset": message.offset} if group else {}
    return {
        "id": message.id,
        **place,
        "key": message.key,
        "due": moments.iso(message.due_us),
        "priority": message.priority,
        "attempts": message.attempts,
        "version": message.version,
        "created": moments.iso(moments.microseconds(message.created)),
        "headers": dict(message.headers or {}),
        "content_type": message.content_type,
        "subject": message.subject,
        **payloads.as_json(message.payload),
    }


def _template(template: str, terminal: bool, fields: tuple[str, ...]) -> Form:
    written = template.replace("\\n", "\n").replace("\\t", "\t")
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(written) if name is not None}
    except ValueError as error:
        raise typer.BadParameter(f"{template!r} is not a template: {error}") from None
    unknown = names - set(fields)
    if unknown or not names:
        problem = f"there is no {{{min(unknown)}}}" if unknown else "it names no field"
        choice = " ".join(f"{{{name}}}" for name in fields)
        raise typer.BadParameter(
            f"{template!r}: {problem}; write {', '.join(FORMS)}, or a template of {choice}"
        )

    def lines(message: Any) -> bytes:
        text = written.format_map({name: _field(message, name) for name in names}) + "\n"
        return (payloads.harmless(text) if terminal else text).encode()

    return lines


def _field(message: Any, name: str) -> Any:
    if name == "payload":
        return payloads.as_text(message.payload)
    if name == "due":
        return moments.shown_moment(message.due_us)
    value = getattr(message, name)
    if name == "created":
        return moments.shown_moment(moments.microseconds(value))
    return "" if value is None else value
