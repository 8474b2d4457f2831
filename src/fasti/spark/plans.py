"""What the tasks of a read do: planned in the driver, from what the broker says."""

from __future__ import annotations

from typing import Any

from fasti.client.client import Client
from fasti.spark.options import Options
from fasti.spark.places import Offsets, feed_place, log_place
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
        fields: dict[str, Any] = {
            "call": "changes",
            "shard": start["shard"],
            "after": start["frame"],
            "through": end["frame"],
            "payload": any(column.name == "payload" for column in self._view.columns),
            "splits": self._splits,
        }
        if self._options.given("topic"):
            fields["topic"] = self._options["topic"]
        if start["frame"] >= end["frame"]:
            return []
        return [
            self._task(ticket, shard=start["shard"])
            for ticket in self._client.transport.plan(fields)
        ]

    def log(self, start: Offsets, end: Offsets) -> list[Task]:
        """Rows of a log between two places, split where a partition has many."""
        spans = [(n, int(start[n]), int(end[n])) for n in sorted(end, key=int)]
        total = sum(last - first for _, first, last in spans if last > first)
        share = max(_LOG_ROWS_MIN, -(-total // self._splits))
        tasks = []
        for number, first, last in spans:
            for begin in range(first, last, share):
                ticket = {
                    "call": "log",
                    "topic": self._options["topic"],
                    "partition": int(number),
                    "offset": begin,
                    "end_offset": min(begin + share, last),
                }
                tasks.append(self._task(ticket))
        return tasks

    def between_options(self) -> list[Task]:
        """A batch read of changes or a log, as the options bound it."""
        place = feed_place if self._view.name == "changes" else log_place
        start = place(self._client, self._options, "startingOffsets")
        end = place(self._client, self._options, "endingOffsets")
        return self.changes(start, end) if self._view.name == "changes" else self.log(start, end)
