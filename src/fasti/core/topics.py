"""Deciding topics: create, change, delete."""

from __future__ import annotations

from collections.abc import Callable

from fasti.core import events as ev
from fasti.core.catalogue.deciding import (
    note_changed,
    note_created,
    note_deleted,
    require_catalogue,
)
from fasti.core.commands import ChangeTopic, CreateTopic, DeleteTopic, PauseTopic
from fasti.core.replies import Done
from fasti.core.routing.bindings import drop_target, is_target
from fasti.core.state import TOPIC_BYTES, Topic
from fasti.core.topic_settings import FIXED, check_settings
from fasti.core.traits import hint
from fasti.core.work import Work
from fasti.errors import InvalidArgument, Overloaded, TopicMismatch
from fasti.model import Limits


def create_topic(work: Work, command: CreateTopic) -> Done:
    """Makes a topic, or finds it made alike."""
    require_catalogue(work, command.name, command.is_own)
    _check_name(command.name, work.limits)
    check_settings(command.settings, work.limits)
    known = work.state.by_name.get(command.name)
    if known is not None:
        differences = command.settings.differences(known.settings)
        if differences:
            told = ", ".join(
                f"{name} is {theirs!r}, not {mine!r}"
                for name, (mine, theirs) in sorted(differences.items())
            )
            raise TopicMismatch(
                f"topic {command.name!r} exists with other settings: {told}", differing=differences
            )
        return Done(known.number)
    if len(work.state.topics) >= work.limits.topics_max:
        raise Overloaded(f"there are {work.limits.topics_max} topics already")
    work.state.memory.require(TOPIC_BYTES + len(command.name), "one more topic")
    number = work.state.next_topic
    work.emit(ev.TopicCreated(work.now_us, number, command.name, command.settings.to_dict()))
    if not command.is_own:
        note_created(work, work.state.topics[number])
    return Done(number)


def change_topic(work: Work, command: ChangeTopic) -> Done:
    """Gives a topic new settings."""
    require_catalogue(work, command.name)
    topic = work.topic(command.name)
    check_settings(command.settings, work.limits)
    differences = command.settings.differences(topic.settings)
    for name in FIXED:
        if name in differences:
            raise InvalidArgument(f"a topic's {name} can't change", field=name)
    if "relay" in differences and command.settings.relay and is_target(work, topic):
        raise InvalidArgument("other topics are bound to it: it can't be a relay", field="relay")
    if differences:
        work.emit(ev.TopicChanged(work.now_us, topic.number, command.settings.to_dict()))
        note_changed(work, topic)
    return Done(topic.number)


def pause_topic(work: Work, command: PauseTopic) -> Done:
    """Stops handing out, or goes on; the value is whether that is new."""
    require_catalogue(work, command.name)
    topic = work.topic(command.name)
    kind = topic.settings.kind
    if not topic.kind.traits.is_consumed:
        raise InvalidArgument(
            f"{topic.name!r} is a {kind} topic, which has no consumers{hint(kind, 'pause')}",
            field="topic",
        )
    if topic.paused == command.paused:
        return Done(False)
    work.emit(ev.TopicPaused(work.now_us, topic.number, int(command.paused)))
    note_changed(work, topic)
    return Done(True)


def delete_named(work: Work, command: DeleteTopic, delete: Callable[[Work, Topic], Done]) -> Done:
    """Finds a topic that `delete` deletes."""
    require_catalogue(work, command.name)
    return delete(work, work.topic(command.name))


def delete_topic(work: Work, topic: Topic) -> Done:
    """Removes a topic with all that it holds."""
    work.emit(ev.TopicDeleted(work.now_us, topic.number))
    note_deleted(work, topic)
    drop_target(work, topic)
    return Done(topic.number)


def _check_name(name: str, limits: Limits) -> None:
    if not 1 <= len(name.encode()) <= limits.name_bytes_max or not name.isprintable():
        raise InvalidArgument(
            f"a topic's name is 1 to {limits.name_bytes_max} printable bytes",
            field="topic",
            limit=limits.name_bytes_max,
        )
