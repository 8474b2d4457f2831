"""Fan-out as a person would write it: lists of messages, and one row after another.

Beside this model the engine is tested. Nothing here is fast, and nothing is shared with the engine:
a pattern is a regular expression, a topic a list, and what may not be is found out on a copy.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field


@dataclass
class Row:
    """What somebody sends."""

    payload: bytes
    key: str | None = None
    subject: str | None = None
    priority: int = 0


@dataclass
class Kept:
    """A message in a topic."""

    payload: bytes
    key: str | None
    owner: str
    version: int = 1
    state: str = "scheduled"
    priority: int = 0


@dataclass
class Holder:
    """A topic: all messages that it ever had, in order."""

    kind: str = "timeline"
    relay: bool = False
    bindings: list[tuple[str, str]] = field(default_factory=list)
    messages: list[Kept] = field(default_factory=list)
    unrouted: int = 0

    def find(self, key: str | None) -> Kept | None:
        """The live message that has the key."""
        for message in self.messages:
            if key is not None and message.key == key and message.state in ("scheduled", "leased"):
                return message
        return None

    def put(self, row: Row, owner: str, on_conflict: str) -> str:
        """What becomes of a row here."""
        taken = None if self.kind == "log" else self.find(row.key)
        priority = row.priority if self.kind == "priority" else 0
        if taken is None:
            self.messages.append(Kept(row.payload, row.key, owner, priority=priority))
            return "ok"
        if on_conflict != "replace":
            return "conflict" if on_conflict == "reject" else "duplicate"
        if taken.state == "leased":
            return "leased"
        if taken.owner not in ("", owner):
            return "not_owner"
        taken.payload, taken.version = row.payload, taken.version + 1
        taken.priority = priority
        return "ok"


def fits(pattern: str, subject: str | None) -> bool:
    """Whether a subject is meant by a pattern."""
    if subject is None:
        return pattern == ">"
    written = re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+")
    return re.fullmatch(written, subject) is not None


class Fanout:
    """Topics and the bindings between them."""

    def __init__(self) -> None:
        self.topics: dict[str, Holder] = {}

    def delete(self, name: str) -> None:
        """A topic goes, and the bindings to it."""
        del self.topics[name]
        for topic in self.topics.values():
            topic.bindings = [pair for pair in topic.bindings if pair[1] != name]

    def targets(self, name: str, subject: str | None) -> list[str]:
        """Where a message goes besides, each once, in the order of the bindings."""
        topic = self.topics[name]
        order = list(dict.fromkeys(target for _, target in topic.bindings))
        meant = {target for pattern, target in topic.bindings if fits(pattern, subject)}
        return [target for target in order if target in meant]

    def produce(self, name: str, rows: list[Row], owner: str, on_conflict: str) -> list[str]:
        """Each row goes everywhere or nowhere."""
        own = self.topics[name]
        if not own.bindings and not own.relay:
            return self._put_all(name, rows, owner, on_conflict, set())
        before = copy.deepcopy(self.topics)
        first = self._put_all(name, rows, owner, on_conflict, set())
        failed = {number for number, said in enumerate(first) if not _content(said, on_conflict)}
        if not failed:
            return first
        self.topics = before
        again = self._put_all(name, rows, owner, on_conflict, failed)
        said = [first[number] if number in failed else again[number] for number in range(len(rows))]
        return [self._follow(said, rows, failed, number) for number in range(len(rows))]

    def produce_whole(self, name: str, rows: list[Row], owner: str, on_conflict: str) -> list[str]:
        """All rows or none."""
        before = copy.deepcopy(self.topics)
        said = self._put_all(name, rows, owner, on_conflict, set())
        if all(_content(each, on_conflict) for each in said):
            return said
        self.topics = before
        return ["aborted" if each == "ok" else each for each in said]

    def _put_all(
        self, name: str, rows: list[Row], owner: str, on_conflict: str, left_out: set[int]
    ) -> list[str]:
        return [
            "ok" if number in left_out else self._put(name, row, owner, on_conflict)
            for number, row in enumerate(rows)
        ]

    def _put(self, name: str, row: Row, owner: str, on_conflict: str) -> str:
        own, targets = self.topics[name], self.targets(name, row.subject)
        if not own.relay and (said := own.put(row, owner, on_conflict)) != "ok":
            return said
        for target in targets:
            said = self.topics[target].put(row, owner, on_conflict)
            if not _content(said, on_conflict):
                return said
        if own.relay and not targets:
            own.unrouted += 1
        return "ok"

    def _follow(self, said: list[str], rows: list[Row], failed: set[int], number: int) -> str:
        """A row that failed behind a failed row of its key was in the way of nobody."""
        key = rows[number].key
        first = next((n for n, row in enumerate(rows) if row.key == key), number)
        is_follower = key is not None and number in failed and first in failed and first != number
        return "aborted" if is_follower else said[number]


def _content(said: str, on_conflict: str) -> bool:
    return said == "ok" or (said == "duplicate" and on_conflict == "keep")
