"""Definitions as documents: what a file holds, what that says, and how topics are written down.

A document is validated whole before any of it is applied. What is wrong is an `invalid_argument` that
says where.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fasti.client.durations import duration_us, length_text
from fasti.client.schedule_documents import schedule_of_document
from fasti.client.topics import given_settings
from fasti.core.topic_settings import check_settings
from fasti.errors import InvalidArgument
from fasti.model import Limits, RetryPolicy, TopicSettings

VERSION = 1

Document = dict[str, Any]
Binding = tuple[str, str]


@dataclass(slots=True)
class TopicDefinition:
    """What a document says about a topic, or what a broker has."""

    settings: TopicSettings
    bindings: list[Binding] = field(default_factory=list)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    # What it holds, where that is known.
    messages: int = 0


# Files


def loads(text: str, as_json: bool = False) -> Document:
    """The document in a file. Raises `invalid_argument` on what is none."""
    try:
        document = json.loads(text) if as_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if as_json else "TOML"
        raise InvalidArgument(
            f"the definitions are not valid {kind}: {error}", field="file"
        ) from error
    if not isinstance(document, dict):
        raise InvalidArgument("definitions must be a table with version and topics", field="file")
    return document


def dumps(document: Document, as_json: bool = False) -> str:
    """A document as a file has it."""
    if as_json:
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    import tomli_w

    return tomli_w.dumps(document)


# Written down


def topic_to_document(topic: TopicDefinition) -> dict[str, Any]:
    """All of it; settings that are defaults are left out."""
    document = settings_to_document(topic.settings)
    if topic.bindings:
        document["bindings"] = [{"pattern": p, "target": t} for p, t in sorted(topic.bindings)]
    if topic.schedules:
        document["schedules"] = dict(sorted(topic.schedules.items()))
    return document


def settings_to_document(settings: TopicSettings) -> dict[str, Any]:
    """The kind, and whatever is not as it would be by default; lengths of time as `30s`."""
    default = TopicSettings()
    document: dict[str, Any] = {"kind": settings.kind}
    for setting in fields(TopicSettings):
        value = getattr(settings, setting.name)
        if setting.name == "kind" or value == getattr(default, setting.name):
            continue
        if setting.name == "retry":
            document["retry"] = {
                part.name.removesuffix("_us"): _shown(part.name, getattr(value, part.name))
                for part in fields(RetryPolicy)
            }
        else:
            document[setting.name.removesuffix("_us")] = _shown(setting.name, value)
    return document


def _shown(name: str, value: Any) -> Any:
    return length_text(value) if name.endswith("_us") else value


# What a document says


def read_document(document: Document, limits: Limits) -> dict[str, TopicDefinition]:
    """Validates a whole document."""
    for name in document:
        if name not in ("version", "topics"):
            raise InvalidArgument(f"definitions have version and topics, not {name!r}", field=name)
    if document.get("version") != VERSION:
        raise InvalidArgument(
            f"definitions say version = {VERSION}, not {document.get('version')!r}", field="version"
        )
    topics = _table(document.get("topics", {}), "topics")
    return {
        name: _topic_of_document(name, _table(topics[name], name), limits)
        for name in sorted(topics)
    }


def _topic_of_document(name: str, given: Mapping[str, Any], limits: Limits) -> TopicDefinition:
    settings = {key: value for key, value in given.items() if key not in ("bindings", "schedules")}
    try:
        topic = TopicDefinition(settings_of_document(settings))
        check_settings(topic.settings, limits)
        topic.bindings = _bindings_of_document(given.get("bindings", []))
        schedules = _table(given.get("schedules", {}), "schedules")
        if schedules and topic.settings.kind != "cron":
            raise InvalidArgument("only a cron topic has schedules", field="schedules")
        for schedule in schedules:
            topic.schedules[schedule] = _schedule(
                schedule, _table(schedules[schedule], schedule), limits
            )
    except InvalidArgument as error:
        raise InvalidArgument(
            f"topics.{name}: {error.message}", field=error.field, limit=error.limit
        ) from error
    return topic


def _schedule(name: str, given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    try:
        return schedule_of_document(given, limits)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"schedules.{name}: {error.message}", field=error.field, limit=error.limit
        ) from error


def settings_of_document(given: dict[str, Any]) -> TopicSettings:
    """The settings that a document has, written by `settings_to_document` or by hand."""
    retry = given.get("retry")
    if retry is not None:
        given = {**given, "retry": _retry_of_document(_table(retry, "retry"))}
    return TopicSettings.from_dict(given_settings(given))


def _retry_of_document(given: Mapping[str, Any]) -> dict[str, Any]:
    """`base = "1s"` and so on; what is left out has its default."""
    policy: dict[str, Any] = asdict(RetryPolicy())
    for name, value in given.items():
        if name in policy:
            policy[name] = value
        elif f"{name}_us" in policy:
            policy[f"{name}_us"] = duration_us(value, name)
        else:
            raise InvalidArgument(
                f"retry has base, factor, limit and jitter, not {name!r}", field="retry"
            )
    return policy


def _bindings_of_document(given: Any) -> list[Binding]:
    if not isinstance(given, list):
        raise InvalidArgument("bindings are a list of tables", field="bindings")
    bindings: list[Binding] = []
    for table in given:
        binding = _table(table, "bindings")
        if set(binding) != {"pattern", "target"}:
            raise InvalidArgument("a binding has a pattern and a target", field="bindings")
        pair = (str(binding["pattern"]), str(binding["target"]))
        if pair not in bindings:
            bindings.append(pair)
    return bindings


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{name} must be a table, not {value!r}", field=name)
    return value
