"""Topics, bindings and schedules as one document: written out, compared, and made so.

A document is what a TOML or JSON file holds (see `docs/guides/definitions.md`). It says how things
should be: a setting that it leaves out has its default, and what it doesn't name at all is left
alone, unless the caller says that the rest goes (`prune`). Topics whose name begins with
`_` are the broker's and its clients' own: they are never written out and never deleted.

`difference` looks and changes nothing; `apply` carries out what it found, in an order in which
nothing is named before it is there. Both may be run again at any time: what is so already is no
difference. Any thread may use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fasti.client.documents import (
    VERSION,
    Binding,
    Document,
    TopicDefinition,
    read_document,
    settings_of_document,
    settings_to_document,
    topic_to_document,
)
from fasti.client.documents import dumps as dumps
from fasti.client.documents import loads as loads
from fasti.client.schedule_documents import arguments_of, schedule_to_document
from fasti.core.topic_settings import FIXED
from fasti.errors import InvalidArgument, NotFound, TopicMismatch

if TYPE_CHECKING:
    from fasti.client.topic_calls import TopicCalls

_FINISHED = ("done", "cancelled")
_TIMING = ("cron", "every", "timezone")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as the document says. `before` and `after` are as it writes them.

    `action` is `create`, `change`, `delete`, or `keep`: there, not in the document, and left alone.
    `what` is `topic`, `binding` (named `pattern -> target`) or `schedule`. `messages` is how many
    messages, rows or entries would go with a topic that is deleted.
    """

    action: str
    what: str
    topic: str
    name: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    messages: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


# What there is


def export(client: TopicCalls) -> Document:
    """Everything that the broker has, as a document; settings that are defaults are left out."""
    topics = {name: topic_to_document(topic) for name, topic in _present(client).items()}
    return {"version": VERSION, "topics": topics}


def _present(client: TopicCalls) -> dict[str, TopicDefinition]:
    topics: dict[str, TopicDefinition] = {}
    for topic in client.topics():
        if topic.name.startswith("_"):
            continue
        its = topics[topic.name] = TopicDefinition(topic.settings)
        its.messages = sum(n for state, n in topic.counts.items() if state not in _FINISHED)
        its.bindings = [
            (binding.pattern, binding.target) for binding in client.bindings(topic.name).list()
        ]
        if topic.settings.kind == "cron":
            schedules = client.schedules(topic.name).list()
            its.schedules = {
                schedule.name: schedule_to_document(schedule.definition) for schedule in schedules
            }
    return dict(sorted(topics.items()))


# What differs


def difference(client: TopicCalls, document: Document, prune: bool = False) -> list[Change]:
    """What must be done so that everything is as the document says, in the order to do it.

    Without `prune`, what the document doesn't name is a `keep`: listed, and left alone. Raises
    `invalid_argument` on a document that can't be, `topic_mismatch` where a topic would have to be
    another kind or have another number of partitions, `not_found` where a target is missing.
    """
    wanted, present = read_document(document, client.limits), _present(client)
    for name, topic in wanted.items():
        _check_fixed(name, topic, present.get(name))
    _check_targets(wanted, {} if prune else present)
    made: list[Change] = []
    gone: list[Change] = []
    for name, topic in wanted.items():
        made += _of_settings(name, present.get(name), topic)
    for name, topic in wanted.items():
        made += _of_bindings(name, present.get(name), topic, gone)
    for name, topic in wanted.items():
        made += _of_schedules(name, present.get(name), topic, gone)
    _check_times(client, made)
    for name, topic in present.items():
        if name not in wanted:
            before, held = topic_to_document(topic), topic.messages
            gone.append(Change("delete", "topic", name, name, before, messages=held))
    # Who points at something goes before what is pointed at.
    gone.sort(key=lambda change: ("schedule", "binding", "topic").index(change.what))
    if not prune:
        gone = [replace(change, action="keep", after=change.before) for change in gone]
    return made + gone


def _check_fixed(name: str, wanted: TopicDefinition, present: TopicDefinition | None) -> None:
    if name.startswith("_"):
        raise InvalidArgument(f"topics.{name}: names with _ in front are the broker's", field=name)
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


def _check_targets(wanted: dict[str, TopicDefinition], present: dict[str, TopicDefinition]) -> None:
    for name, topic in wanted.items():
        targets = {target for _, target in topic.bindings}
        targets |= {
            schedule["target"] for schedule in topic.schedules.values() if "target" in schedule
        }
        for target in sorted(targets):
            if target not in wanted and target not in present:
                raise NotFound(
                    f"topics.{name} names the target {target!r}, which is neither in the"
                    " definitions nor there"
                )


def _check_times(client: TopicCalls, made: list[Change]) -> None:
    """The broker knows which expressions and zones there are: each is asked for once."""
    seen: set[tuple[Any, ...]] = set()
    for change in made:
        if change.what != "schedule" or change.after is None:
            continue
        timing = {name: change.after[name] for name in _TIMING if name in change.after}
        if tuple(timing.items()) in seen:
            continue
        seen.add(tuple(timing.items()))
        try:
            client.schedules(change.topic).preview(count=1, **timing)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"topics.{change.topic}: schedules.{change.name}: {error.message}",
                field=error.field,
                limit=error.limit,
            ) from error


def _of_settings(
    name: str, present: TopicDefinition | None, wanted: TopicDefinition
) -> list[Change]:
    after = settings_to_document(wanted.settings)
    if present is None:
        return [Change("create", "topic", name, name, None, after)]
    if present.settings == wanted.settings:
        return []
    before = settings_to_document(present.settings)
    return [Change("change", "topic", name, name, before, after)]


def _of_bindings(
    name: str, present: TopicDefinition | None, wanted: TopicDefinition, gone: list[Change]
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
    name: str, present: TopicDefinition | None, wanted: TopicDefinition, gone: list[Change]
) -> list[Change]:
    there = {} if present is None else present.schedules
    for schedule in sorted(set(there) - set(wanted.schedules)):
        gone.append(Change("delete", "schedule", name, schedule, there[schedule]))
    changes = []
    for schedule, after in sorted(wanted.schedules.items()):
        before = there.get(schedule)
        if before != after:
            action = "create" if before is None else "change"
            changes.append(Change(action, "schedule", name, schedule, before, after))
    return changes


# Making it so


def apply(client: TopicCalls, changes: Iterable[Change]) -> int:
    """Carries out what `difference` found: how many changes were made. Stops at the first error.

    What was done until then stays: apply the document again once the cause is gone.
    """
    made, puts = 0, _Puts(client)
    for change in changes:
        if change.action == "keep":
            continue
        if change.what == "schedule" and change.action != "delete":
            puts.add(change)
        else:
            puts.flush()
            _APPLY[change.what](client, change)
        made += 1
    puts.flush()
    return made


class _Puts:
    """Schedules of one topic that are put together: there may be a hundred thousand."""

    def __init__(self, client: TopicCalls) -> None:
        self._client, self._topic = client, ""
        self._schedules: dict[str, dict[str, Any]] = {}

    def add(self, change: Change) -> None:
        """One more."""
        if change.topic != self._topic:
            self.flush()
            self._topic = change.topic
        self._schedules[change.name] = arguments_of(change.after or {})

    def flush(self) -> None:
        """Puts them."""
        if self._schedules:
            self._client.schedules(self._topic).put_many(self._schedules)
            self._schedules = {}


def _apply_topic(client: TopicCalls, change: Change) -> None:
    if change.action == "delete":
        client.delete_topic(change.topic)
        return
    settings = settings_of_document(dict(change.after or {})).to_dict()
    if change.action == "create":
        client.create_topic(change.topic, **settings)
    else:
        client.change_topic(change.topic, **settings)


def _apply_binding(client: TopicCalls, change: Change) -> None:
    binding = change.after or change.before or {}
    bindings = client.bindings(change.topic)
    if change.action == "delete":
        bindings.remove(binding["pattern"], binding["target"])
    else:
        bindings.add(binding["pattern"], binding["target"])


def _delete_schedule(client: TopicCalls, change: Change) -> None:
    client.schedules(change.topic).delete(change.name)


_APPLY = {"topic": _apply_topic, "binding": _apply_binding, "schedule": _delete_schedule}
