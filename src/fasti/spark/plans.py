"""What the tasks of a read do: planned in the driver, from what the broker says."""

from __future__ import annotations

from typing import Any

from fasti.client.changes import Position
from fasti.client.client import Client
from fasti.spark.options import Options
from fasti.spark.places import Offsets, feed_place, log_place, position_of
from fasti.spark.tickets import Task
from fasti.spark.views import View

# Of one task, unless there is more work than tasks: a ticket that is too small isn't worth one.
_LOG_ROWS_MIN = 50_000


class Planner:
    """Plans reads of one view."""

    def __init__(self, client: Client, options: Options, view: View, parallelism: int) -> None:
        self._client, self._options, self._view = client, options, view
        self._splits = max(parallelism, options["minPartitions"] or 1)

    def _task(self, ticket: dict[str, Any], **constants: str) -> Task:
        ticket = {name: value for name, value in ticket.items() if name != "version"}
        names = tuple(column.name for column in self._view.columns)
        address, token = self._options["address"], self._options["token"]
        return Task(ticket, address, token, self._view.name, names, constants)

    def messages(self, filters: dict[str, Any]) -> list[Task]:
        """Messages as they are now: one snapshot, a task per partition."""
        fields: dict[str, Any] = {
            "call": "list",
            "topic": self._options["topic"],
            "payload": self._view.wants_contents,
            **filters,
        }
        for name in ("state", "owner"):
            if self._options.given(name):
                fields[name] = self._options[name]
        return [self._task(ticket) for ticket in self._client.transport.plan(fields)]

    def entries(self) -> list[Task]:
        """Entries of a key-value topic."""
        fields: dict[str, Any] = {"call": "kv", "topic": self._options["topic"]}
        if self._options.given("prefix"):
            fields["prefix"] = self._options["prefix"]
        return [self._task(ticket) for ticket in self._client.transport.plan(fields)]

    def changes(self, start: Offsets, end: Offsets) -> list[Task]:
        """What happened between two positions."""
        begin, last = position_of(start), position_of(end)
        if begin.frame >= last.frame:
            return []
        fields = {**self._changes(begin, last), "splits": self._splits}
        tickets = self._client.transport.plan(fields)
        return [self._task(ticket, shard=begin.shard) for ticket in tickets]

    def change_task(self, begin: Position, end: Position) -> Task:
        """All of what happened between two positions, in one task: nobody is asked."""
        return self._task(self._changes(begin, end), shard=begin.shard)

    def _changes(self, begin: Position, end: Position) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "call": "changes",
            "shard": begin.shard,
            "after": begin.frame,
            "through": end.frame,
            "payload": any(column.name == "payload" for column in self._view.columns),
        }
        if self._options.given("topic"):
            fields["topic"] = self._options["topic"]
        return fields

    def log(self, start: Offsets, end: Offsets) -> list[Task]:
        """Rows of a log between two places, split where a partition has many."""
        spans = [(n, int(start[n]), int(end[n])) for n in sorted(end, key=int)]
        total = sum(last - first for _, first, last in spans if last > first)
        least = 1 if self._options["minPartitions"] else _LOG_ROWS_MIN
        share = max(least, -(-total // self._splits))
        return [
            self.log_task(int(number), begin, min(begin + share, last))
            for number, first, last in spans
            for begin in range(first, last, share)
        ]

    def log_task(self, partition: int, begin: int, end: int) -> Task:
        """Rows of one partition of a log."""
        ticket = {
            "call": "log",
            "topic": self._options["topic"],
            "partition": partition,
            "offset": begin,
            "end_offset": end,
        }
        return self._task(ticket)

    def between_options(self) -> list[Task]:
        """A batch read of changes or a log, as the options bound it."""
        place = feed_place if self._view.name == "changes" else log_place
        start = place(self._client, self._options, "startingOffsets")
        end = place(self._client, self._options, "endingOffsets")
        return self.changes(start, end) if self._view.name == "changes" else self.log(start, end)
