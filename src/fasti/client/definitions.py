"""Topics, bindings and schedules as one document: written out, compared, and made so.

A document is what a TOML or JSON file holds (see `docs/guides/definitions.md`). It says how things
should be: a setting that it leaves out has its default, and what it doesn't name at all is left
alone, unless whoever applies it says that the rest goes (`prune`). Topics whose name begins with
`_` are the broker's and its clients' own: they are never written out and never deleted.

`difference` looks and changes nothing; `apply` carries out what it found, in an order in which
nothing is named before it is there. Both may be run again at any time: what is so already is no
difference. Any thread may use them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fasti.client.durations import duration_us
from fasti.client.schedule_documents import schedule_of_document, schedule_to_document
from fasti.client.topics import given_settings
from fasti.core.topics import FIXED, check_settings
from fasti.errors import InvalidArgument, NotFound, TopicMismatch
from fasti.model import DAY_US, HOUR_US, MINUTE_US, SECOND_US, RetryPolicy, TopicSettings

if TYPE_CHECKING:
    from fasti.client.client import Client

VERSION = 1
_UNITS = (("d", DAY_US), ("h", HOUR_US), ("m", MINUTE_US), ("s", SECOND_US), ("ms", 1_000))

Document = dict[str, Any]
Binding = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as the document says. `before` and `after` are as it writes them.

    `action` is `create`, `change`, `delete`, or `keep`: there, not in the document, and left alone.
    `what` is `topic`, `binding` (named `pattern -> target`) or `schedule`.
    """

    action: str
    what: str
    topic: str
    name: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(slots=True)
class _Topic:
    """What a document says about a topic, or what a broker has."""

    settings: TopicSettings
    bindings: list[Binding] = field(default_factory=list)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)


# Files


def loads(text: str, as_json: bool = False) -> Document:
    """The document in a file. Raises `invalid_argument` on what is none."""
    try:
        found = json.loads(text) if as_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if as_json else "TOML"
        raise InvalidArgument(f"the definitions are no {kind}: {error}", field="file") from error
    if not isinstance(found, dict):
        raise InvalidArgument("definitions are a table with version and topics", field="file")
    return found


def dumps(document: Document, as_json: bool = False) -> str:
    """A document as a file has it."""
    if as_json:
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    import tomli_w

    return tomli_w.dumps(document)


# What there is


def export(client: Client) -> Document:
    """Everything that the broker has, as a document; settings that are defaults are left out."""
    topics = {name: _topic_to_document(topic) for name, topic in _present(client).items()}
    return {"version": VERSION, "topics": topics}


def _present(client: Client, names: Iterable[str] | None = None) -> dict[str, _Topic]:
    found: dict[str, _Topic] = {}
    for topic in client.topics():
        if topic.name.startswith("_") or (names is not None and topic.name not in names):
            continue
        its = found[topic.name] = _Topic(topic.settings)
        its.bindings = [(each.pattern, each.target) for each in client.bindings(topic.name).list()]
        if topic.settings.kind == "cron":
            schedules = client.schedules(topic.name).list()
            its.schedules = {each.name: schedule_to_document(each) for each in schedules}
    return dict(sorted(found.items()))


def _topic_to_document(topic: _Topic) -> dict[str, Any]:
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
    for each in fields(TopicSettings):
        value = getattr(settings, each.name)
        if each.name == "kind" or value == getattr(default, each.name):
            continue
        if each.name == "retry":
            document["retry"] = {
                part.name.removesuffix("_us"): _shown(part.name, getattr(value, part.name))
                for part in fields(RetryPolicy)
            }
        else:
            document[each.name.removesuffix("_us")] = _shown(each.name, value)
    return document


def _shown(name: str, value: Any) -> Any:
    return length_text(value) if name.endswith("_us") else value


def length_text(length_us: int) -> str:
    """A length of time as one would write it, and as it is read back."""
    text, left = "", length_us
    for unit, size_us in _UNITS:
        count, left = divmod(left, size_us)
        text += f"{count}{unit}" if count else ""
    return text + (f"{left}us" if left else "") or "0s"


# What a document says


def _wanted(document: Document) -> dict[str, _Topic]:
    """Checks a document, all of it, before anybody acts on it."""
    for name in document:
        if name not in ("version", "topics"):
            raise InvalidArgument(f"definitions have version and topics, not {name!r}", field=name)
    if document.get("version") != VERSION:
        raise InvalidArgument(
            f"definitions say version = {VERSION}, not {document.get('version')!r}", field="version"
        )
    topics = _table(document.get("topics", {}), "topics")
    return {name: _topic_of_document(name, _table(topics[name], name)) for name in sorted(topics)}


def _topic_of_document(name: str, given: Mapping[str, Any]) -> _Topic:
    settings = {key: value for key, value in given.items() if key not in ("bindings", "schedules")}
    try:
        topic = _Topic(_settings_of_document(settings))
        topic.bindings = _bindings_of_document(given.get("bindings", []))
        schedules = _table(given.get("schedules", {}), "schedules")
        if schedules and topic.settings.kind != "cron":
            raise InvalidArgument("only a cron topic has schedules", field="schedules")
        for each in schedules:
            topic.schedules[each] = schedule_of_document(each, _table(schedules[each], each))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"topics.{name}: {error.message}", field=error.field, limit=error.limit
        ) from error
    return topic


def _settings_of_document(given: dict[str, Any]) -> TopicSettings:
    retry = given.get("retry")
    if retry is not None:
        given = {**given, "retry": _retry_of_document(_table(retry, "retry"))}
    return TopicSettings.from_dict(given_settings(given))


def _retry_of_document(given: Mapping[str, Any]) -> dict[str, Any]:
    """`base = "1s"` and so on; what is left out has its default."""
    found: dict[str, Any] = asdict(RetryPolicy())
    for name, value in given.items():
        if name in found:
            found[name] = value
        elif f"{name}_us" in found:
            found[f"{name}_us"] = duration_us(value, name)
        else:
            raise InvalidArgument(
                f"retry has base, factor, limit and jitter, not {name!r}", field="retry"
            )
    return found


def _bindings_of_document(given: Any) -> list[Binding]:
    if not isinstance(given, list):
        raise InvalidArgument("bindings are a list of tables", field="bindings")
    found: list[Binding] = []
    for each in given:
        binding = _table(each, "bindings")
        if set(binding) != {"pattern", "target"}:
            raise InvalidArgument("a binding has a pattern and a target", field="bindings")
        pair = (str(binding["pattern"]), str(binding["target"]))
        if pair not in found:
            found.append(pair)
    return found


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{name} must be a table, not {value!r}", field=name)
    return value


# What differs


def difference(client: Client, document: Document, prune: bool = False) -> list[Change]:
    """What must be done so that everything is as the document says, in the order to do it.

    Without `prune`, what the document doesn't name is a `keep`: told, and left alone. Raises
    `invalid_argument` on a document that can't be, `topic_mismatch` where a topic would have to be
    another kind or have another number of partitions, `not_found` where a target is missing.
    """
    wanted, present = _wanted(document), _present(client)
    for name, topic in wanted.items():
        _check(client, name, topic, present.get(name))
    _check_targets(wanted, present)
    made: list[Change] = []
    gone: list[Change] = []
    for name, topic in wanted.items():
        made += _of_settings(name, present.get(name), topic)
    for name, topic in wanted.items():
        made += _of_bindings(name, present.get(name), topic, gone)
    for name, topic in wanted.items():
        made += _of_schedules(name, present.get(name), topic, gone)
    for name, topic in present.items():
        if name not in wanted:
            gone.append(Change("delete", "topic", name, name, _topic_to_document(topic)))
    # Who points at something goes before what is pointed at.
    gone.sort(key=lambda change: ("schedule", "binding", "topic").index(change.what))
    if not prune:
        gone = [Change("keep", c.what, c.topic, c.name, c.before, c.before) for c in gone]
    return made + gone


def _check(client: Client, name: str, wanted: _Topic, present: _Topic | None) -> None:
    if name.startswith("_"):
        raise InvalidArgument(f"topics.{name}: names with _ in front are the broker's", field=name)
    try:
        check_settings(wanted.settings, client.limits)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"topics.{name}: {error.message}", field=error.field, limit=error.limit
        ) from error
    if present is None:
        return
    differing = wanted.settings.differences(present.settings)
    for fixed in FIXED:
        if fixed in differing:
            mine, theirs = differing[fixed]
            raise TopicMismatch(
                f"topic {name!r} has {fixed.removesuffix('_us')} {theirs!r} and can't get {mine!r}:"
                " delete it first, or give it another name",
                differing={fixed: differing[fixed]},
            )


def _check_targets(wanted: dict[str, _Topic], present: dict[str, _Topic]) -> None:
    for name, topic in wanted.items():
        targets = {target for _, target in topic.bindings}
        targets |= {each["target"] for each in topic.schedules.values() if "target" in each}
        for target in sorted(targets):
            if target not in wanted and target not in present:
                raise NotFound(f"topics.{name} names the target {target!r}, which is nowhere")


def _of_settings(name: str, present: _Topic | None, wanted: _Topic) -> list[Change]:
    after = settings_to_document(wanted.settings)
    if present is None:
        return [Change("create", "topic", name, name, None, after)]
    if present.settings == wanted.settings:
        return []
    before = settings_to_document(present.settings)
    return [Change("change", "topic", name, name, before, after)]


def _of_bindings(
    name: str, present: _Topic | None, wanted: _Topic, gone: list[Change]
) -> list[Change]:
    there = [] if present is None else present.bindings
    for binding in sorted(set(there) - set(wanted.bindings)):
        gone.append(_of_binding("delete", name, binding))
    new = [binding for binding in wanted.bindings if binding not in there]
    return [_of_binding("create", name, binding) for binding in new]


def _of_binding(action: str, topic: str, binding: Binding) -> Change:
    pattern, target = binding
    shown = {"pattern": pattern, "target": target}
    before, after = (shown, None) if action == "delete" else (None, shown)
    return Change(action, "binding", topic, f"{pattern} -> {target}", before, after)


def _of_schedules(
    name: str, present: _Topic | None, wanted: _Topic, gone: list[Change]
) -> list[Change]:
    there = {} if present is None else present.schedules
    for each in sorted(set(there) - set(wanted.schedules)):
        gone.append(Change("delete", "schedule", name, each, there[each]))
    found = []
    for each, after in sorted(wanted.schedules.items()):
        before = there.get(each)
        if before != after:
            action = "create" if before is None else "change"
            found.append(Change(action, "schedule", name, each, before, after))
    return found


# Making it so


def apply(client: Client, changes: Iterable[Change]) -> int:
    """Carries out what `difference` found: how many changes were made. Stops at the first error.

    What was done until then stays: apply the document again once the cause is gone.
    """
    made = 0
    for change in changes:
        if change.action != "keep":
            _APPLY[change.what](client, change)
            made += 1
    return made


def _apply_topic(client: Client, change: Change) -> None:
    if change.action == "delete":
        client.delete_topic(change.topic)
        return
    settings = _settings_of_document(dict(change.after or {})).to_dict()
    if change.action == "create":
        client.create_topic(change.topic, **settings)
    else:
        client.change_topic(change.topic, **settings)


def _apply_binding(client: Client, change: Change) -> None:
    binding = change.after or change.before or {}
    bindings = client.bindings(change.topic)
    if change.action == "delete":
        bindings.remove(binding["pattern"], binding["target"])
    else:
        bindings.add(binding["pattern"], binding["target"])


def _apply_schedule(client: Client, change: Change) -> None:
    schedules = client.schedules(change.topic)
    if change.action == "delete":
        schedules.delete(change.name)
    else:
        schedules.put(change.name, **(change.after or {}))


_APPLY = {"topic": _apply_topic, "binding": _apply_binding, "schedule": _apply_schedule}
