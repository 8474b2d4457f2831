"""Questions about a shard as a whole, and how they are answered.

A query is an input of a step like a command, and changes nothing. What it tells is as of its step,
and may not be durable yet: a caller who must not see that submits the query like a command, and has
its reply when all of it is. `SetMemory` is here too: it changes nothing that is durable.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import Command
from fasti.core.kind import Handler
from fasti.core.replies import Done
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.errors import InvalidArgument
from fasti.model import TopicSettings

# So many are told in one step, in about a millisecond.
TOPICS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ReadTopics(Command):
    """Topics whose number is above `after`, at most a page: a list of `TopicView`.

    Of all kinds or of one; or the one of a name.
    """

    kind: str = ""
    name: str = ""
    after: int = 0


class TopicView(NamedTuple):
    """A topic as it is now, and two counts since the start.

    `unrouted`: rows that a relay passed on to no topic; `unopened`: leases that ended at consumers
    that fell silent.
    """

    number: int
    name: str
    settings: TopicSettings
    paused: bool
    bindings: tuple[tuple[str, str], ...]
    unrouted: int
    unopened: int


@dataclass(frozen=True, slots=True)
class ReadTopicNames(Command):
    """The name of every topic by its number, deleted ones too while the change feed has them."""


@dataclass(frozen=True, slots=True)
class ReadPosition(Command):
    """The last frame that is decided."""


@dataclass(frozen=True, slots=True)
class ReadLeases(Command):
    """Whose leases there are: a `LeaseHolders`, which names these pairs of topic and consumer."""

    consumers: list[tuple[str, str]]


class LeaseHolders(NamedTuple):
    """Topic and consumer of every lease as one number, and the names that such numbers stand for."""

    holders: NDArray[np.int64]
    names: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SetMemory(Command):
    """The memory that the engine may use from now on. Not journaled: who lends it says it again.

    No more than the engine was made with: its columns are that large. Less than is used takes nothing
    away; nothing more is remembered then. Done(value=`MemoryUse`).
    """

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ReadMemory(Command):
    """What is used of the memory: Done(value=`MemoryUse`)."""


class MemoryUse(NamedTuple):
    """`limit_bytes` is what the engine was made with, which its budget can't exceed."""

    used_bytes: int
    budget_bytes: int
    limit_bytes: int


def set_memory(work: Work, command: SetMemory) -> Done:
    """The value is a `MemoryUse`."""
    if command.budget_bytes < 0:
        raise InvalidArgument("a budget can't be negative", field="budget_bytes", limit=0)
    memory = work.state.memory
    memory.budget_bytes = min(command.budget_bytes, memory.limit_bytes)
    return read_memory(work, ReadMemory())


def read_memory(work: Work, query: ReadMemory) -> Done:
    """The value is a `MemoryUse`."""
    memory = work.state.memory
    return Done(MemoryUse(memory.used_bytes, memory.budget_bytes, memory.limit_bytes))


def read_topics(work: Work, query: ReadTopics) -> Done:
    """The value is a list of `TopicView`, by number."""
    state = work.state
    if query.name:
        topic = state.by_name.get(query.name)
        return Done([_view(topic)] if topic is not None else [])
    if query.kind and query.kind not in state.kinds:
        return Done([])
    topics = state.kinds[query.kind].all_topics if query.kind else state.topics
    # In the order of their numbers: a new topic has the highest, also in a checkpoint.
    numbers = list(topics)
    begin = bisect_right(numbers, query.after)
    page = numbers[begin : begin + TOPICS_PER_PAGE]
    return Done([_view(topics[number]) for number in page])


def _view(topic: Topic) -> TopicView:
    return TopicView(
        topic.number,
        topic.name,
        topic.settings,
        topic.paused,
        tuple(topic.bindings),
        topic.unrouted,
        topic.unopened,
    )


def read_topic_names(work: Work, query: ReadTopicNames) -> Done:
    """The value is a dict."""
    return Done(dict(work.state.directory.topics))


def read_position(work: Work, query: ReadPosition) -> Done:
    """The value is a number."""
    return Done(work.state.next_frame - 1)


def read_leases(work: Work, query: ReadLeases) -> Done:
    """The value is a `LeaseHolders`; the caller counts them."""
    state, memory = work.state, work.state.memory
    names = {}
    for topic, consumer in query.consumers:
        number = memory.consumers.find(consumer)
        if topic in state.by_name and number is not None:
            names[state.by_name[topic].number << 32 | number] = (topic, consumer)
    leases = memory.leases
    live = leases.live()
    holders = leases.topic[live].astype(np.int64) << 32 | leases.consumer[live]
    return Done(LeaseHolders(holders, names))


HANDLERS: dict[type, Handler] = {
    ReadTopics: read_topics,
    ReadTopicNames: read_topic_names,
    ReadPosition: read_position,
    ReadLeases: read_leases,
    SetMemory: set_memory,
    ReadMemory: read_memory,
}
