"""Bindings between topics: made, ended and read; what a topic gets goes to those it is bound to.

A binding is a pattern and a target. The list of a topic's bindings is changed as a whole, by one
event, and has a version by which routes that were worked out for it are known (core/routing/fanout.py).
The sequencer's thread only.
"""

from __future__ import annotations

from fasti.core import events as ev
from fasti.core.catalogue.deciding import note_changed, require_catalogue
from fasti.core.layout import Layout
from fasti.core.replies import Done
from fasti.core.routing.commands import Bind, ReadBindings, Unbind
from fasti.core.routing.subjects import check_pattern
from fasti.core.state import BINDING_BYTES, Topic
from fasti.core.traits import kinds_with
from fasti.core.work import Work
from fasti.errors import CrossShard, InvalidArgument, NotFound


def bind(work: Work, command: Bind) -> Done:
    """Binds a topic to another by a pattern. Done(whether that is new)."""
    require_catalogue(work, command.topic)
    topic, target = work.topic(command.topic), work.topic(command.target)
    check_pattern(command.pattern)
    for end, field in ((topic, "topic"), (target, "target")):
        if not end.kind.traits.is_consumed:
            kinds = ", ".join(kinds_with(lambda traits: traits.is_consumed))
            raise InvalidArgument(
                f"{end.name!r} is a {end.kind.name} topic: bindings are between topics of "
                f"the kinds {kinds}",
                field=field,
            )
    if topic is target:
        raise InvalidArgument("a topic can't be bound to itself", field="target")
    if target.settings.relay:
        raise InvalidArgument(
            f"{target.name!r} is a relay, and what is passed on is not passed on again: it would "
            "be kept nowhere",
            field="target",
        )
    _check_shards(work, topic, target)
    pair = (command.pattern, command.target)
    if pair in topic.bindings:
        return Done(False)
    limit = work.limits.bindings_max
    if len(topic.bindings) >= limit:
        raise InvalidArgument(
            f"a topic has at most {limit} bindings", field="bindings_max", limit=limit
        )
    work.state.memory.require(BINDING_BYTES + len(command.pattern), "one more binding")
    _change(work, topic, [*topic.bindings, pair])
    return Done(True)


def _check_shards(work: Work, topic: Topic, target: Topic) -> None:
    """Every copy must have a place on the shard of its message. Raises `cross_shard`."""
    shards = work.state.place.count
    if shards > 1 and not Layout.of(topic.settings, shards).keeps_to(
        Layout.of(target.settings, shards)
    ):
        raise CrossShard(
            f"messages of {topic.name!r} and their copies in {target.name!r} would lie on different "
            "shards: make both topics of one kind of keys (logs choose by rank, others by hash), with "
            "the same home, partitions and width",
            details={"topic": topic.name, "target": target.name},
        )


def unbind(work: Work, command: Unbind) -> Done:
    """Ends a binding."""
    require_catalogue(work, command.topic)
    topic = work.topic(command.topic)
    pair = (command.pattern, command.target)
    if pair not in topic.bindings:
        raise NotFound(
            f"{topic.name!r} is not bound to {command.target!r} by {command.pattern!r}",
            details={"topic": topic.name, "pattern": command.pattern, "target": command.target},
        )
    _change(work, topic, [each for each in topic.bindings if each != pair])
    return Done()


def read_bindings(work: Work, command: ReadBindings) -> Done:
    """The topic's bindings and their version."""
    topic = work.topic(command.topic)
    return Done((topic.bindings_version, list(topic.bindings)))


def drop_target(work: Work, target: Topic) -> None:
    """The topic was deleted: nobody is bound to it any more."""
    for topic in work.state.topics.values():
        rest = [pair for pair in topic.bindings if pair[1] != target.name]
        if len(rest) < len(topic.bindings):
            _change(work, topic, rest)


def is_target(work: Work, topic: Topic) -> bool:
    """Whether some topic is bound to this one."""
    return any(
        target == topic.name for each in work.state.topics.values() for _, target in each.bindings
    )


def _change(work: Work, topic: Topic, bindings: list[tuple[str, str]]) -> None:
    # The frame's number: a topic that is deleted and made again never has an old version, so
    # routes that were worked out for the old one are not taken for good.
    pairs = [list(pair) for pair in bindings]
    work.emit(ev.BindingsChanged(work.now_us, topic.number, work.state.next_frame, pairs))
    note_changed(work, topic)
