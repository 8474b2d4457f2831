"""What the tasks of a read do: planned in the driver, from what the broker says."""

from __future__ import annotations

import uuid
from typing import Any

from fasti.client.client import Client
from fasti.client.durations import moment_us
from fasti.client.position import Position, by_shard
from fasti.client.transport import LOCATION
from fasti.errors import InvalidArgument
from fasti.spark.filters import Pushed
from fasti.spark.options import Options
from fasti.spark.parallelism import cores
from fasti.spark.places import Offsets, feed_place, log_place, position_of
from fasti.spark.shards import (
    even_share,
    feed_shard,
    feeds_at,
    offsets_at,
    partition_shard,
    shards_of,
)
from fasti.spark.snapshots import SnapshotTask
from fasti.spark.tickets import Task
from fasti.spark.views import View

# Of one task, unless there is more work than tasks: a ticket that is too small isn't worth one.
_LOG_ROWS_MIN = 50_000
_MOST = (1 << 63) - 1
# How long a snapshot is kept after its last use; and when all of it was read.
_KEEP_US, _LINGER_US = 600_000_000, 60_000_000
# Which kinds of topics have which view.
_KINDS = {"messages": ("timeline", "priority"), "log": ("log",), "kv": ("kv",)}


# Where ids of one partition end and those of the next begin.
_PARTITION_BITS = 51


class Planner:
    """Plans reads of one view."""

    def __init__(
        self,
        client: Client,
        options: Options,
        view: View,
        parallelism: int | None = None,
        filters: Pushed | None = None,
    ) -> None:
        self._client, self._options, self._view = client, options, view
        self._splits = max(parallelism or cores(), options["minPartitions"] or 1)
        self._filters = filters or Pushed(view.name)

    def _common(self) -> dict[str, Any]:
        """What all tasks have."""
        return {
            "address": self._options["address"],
            "token": self._options["token"],
            "view": self._view.name,
            "columns": tuple(column.name for column in self._view.columns),
            "timeout_s": self._options["timeout"],
        }

    def _task(self, number: int, ticket: dict[str, Any], **constants: Any) -> Task:
        """Of one shard."""
        return Task(ticket=_plain(ticket), constants=constants, shard=number, **self._common())

    def planned(self) -> list[Task]:
        """A batch read, as options and filters bound it. Raises `not_found` and the like."""
        self._check_kind()
        if self._filters.nothing:
            return []
        if self._view.name == "messages":
            return self._messages()
        return self._entries() if self._view.name == "kv" else self._between_options()

    def _check_kind(self) -> None:
        """That the topic is there, and of a kind that has this view."""
        topic = self._options["topic"]
        if topic is None:
            return
        if self._view.name == "changes":
            # Also of topics that are gone by now.
            return
        header, _ = self._client.transport.call("topic", {"topic": topic})
        kind = header["settings"]["kind"]
        if kind not in _KINDS[self._view.name]:
            view = next((name for name, kinds in _KINDS.items() if kind in kinds), "changes")
            raise InvalidArgument(
                f"topic {topic!r} is of kind {kind!r}: read it with view {view!r}, not "
                f"{self._view.name!r}",
                field="view",
            )

    def _messages(self) -> list[Task]:
        fields: dict[str, Any] = {"call": "list"}
        options, filters = self._options, self._filters
        if options.given("dueFrom"):
            filters.between("due", moment_us(options["dueFrom"]), _MOST)
        if options.given("dueTo"):
            filters.between("due", 0, moment_us(options["dueTo"]))
        for option, column in (("state", "state"), ("owner", "owner"), ("key", "key")):
            if options.given(option):
                value = options[option]
                filters.one_of(column, frozenset([value] if isinstance(value, str) else value))
        if filters.nothing:
            return []
        for name, words in filters.words.items():
            fields[f"{name}s"] = sorted(words)
        bounds = {"due_from_us": filters.low("due"), "due_to_us": filters.high("due")}
        fields |= {name: at for name, at in bounds.items() if at is not None}
        return self._of_snapshot(fields)

    def _entries(self) -> list[Task]:
        fields: dict[str, Any] = {"call": "kv"}
        options, filters = self._options, self._filters
        if options.given("key"):
            filters.one_of("key", frozenset([options["key"]]))
        prefixes = [prefix for prefix in (options["prefix"], filters.prefix) if prefix]
        # The longer one says it all, if they agree.
        longest = max(prefixes, key=len, default="")
        if filters.nothing or not all(longest.startswith(prefix) for prefix in prefixes):
            return []
        if longest:
            fields["prefix"] = longest
        if "key" in filters.words:
            fields["keys"] = sorted(filters.words["key"])
        return self._of_snapshot(fields)

    def _of_snapshot(self, fields: dict[str, Any]) -> list[Task]:
        """Tasks that share a snapshot of their shard, which is taken by the first of them."""
        fields = {**fields, "topic": self._options["topic"], "columns": self._view.wire}
        shards = self._shards_with(fields.get("keys"))
        plan, splits = uuid.uuid4().hex, even_share(self._splits, shards)
        return [
            task
            for number in shards
            for task in self._of_shard_snapshot(number, fields, plan, splits)
        ]

    def _shards_with(self, keys: list[str] | None) -> list[int]:
        """Those that have something of the topic; if keys are named, something of these."""
        transport, topic = self._client.transport, self._options["topic"]
        # The topic may have been made anew since it was read last.
        transport.forget_layout(topic)
        shards = shards_of(transport, topic)
        if keys and len(shards) > 1:
            layout = transport.layout(topic)
            return sorted({layout.shard_of_key(key) for key in keys})
        return shards

    def _of_shard_snapshot(
        self, number: int, fields: dict[str, Any], plan: str, splits: int
    ) -> list[Task]:
        transport = self._client.transport.shard(number)
        held, _ = transport.call("take_snapshot", {})
        try:
            place = {"snapshot": held["snapshot"], "splits": splits}
            tickets = transport.plan({**fields, **place})
        finally:
            transport.call("drop_snapshot", {"snapshot": held["snapshot"]})
        nonempty = []
        for ticket in tickets:
            ids = self._ids(ticket["after_id"], ticket["until_id"])
            if ids[1] is None or ids[1] > ids[0] + 1:
                nonempty.append(({n: ticket[n] for n in (LOCATION,) if n in ticket}, ids))
        keep_us = self._options["snapshotTimeout"]
        common = {
            **self._common(),
            "shard": number,
            "plan": plan,
            "life": held["life"],
            "keep_us": keep_us or _KEEP_US,
            "linger_us": keep_us or _LINGER_US,
            "parts": len(nonempty),
        }
        return [
            SnapshotTask(
                ticket={**broker, **fields, "after_id": after, "until_id": until},
                part=part,
                **common,
            )
            for part, (broker, (after, until)) in enumerate(nonempty)
        ]

    def _ids(self, after_id: int, until_id: int | None) -> tuple[int, int | None]:
        """A range of ids as far as filters on id and partition leave it."""
        end = _MOST if until_id is None else until_id
        first, end = self._filters.clip("id", after_id + 1, end)
        low, high = self._filters.low("partition"), self._filters.high("partition")
        if low is not None:
            first = max(first, min(low, 4096) << _PARTITION_BITS)
        if high is not None:
            end = min(end, max(high, 0) << _PARTITION_BITS)
        return max(0, first - 1), None if end >= _MOST else max(end, 0)

    def changes(self, start: Offsets, end: Offsets) -> list[Task]:
        """What happened between two positions, in the feed of each shard."""
        return self.changes_of(self._spans(start, end))

    def _spans(self, start: Offsets, end: Offsets) -> list[tuple[Position, Position]]:
        """Of each shard, where it begins and ends. Raises `invalid_argument` if one is not named."""
        count = self._client.transport.shard_count
        begins = by_shard(position_of(start).frames, count, "startingOffsets")
        ends = by_shard(position_of(end).frames, count, "endingOffsets")
        return list(zip(begins, ends, strict=True))

    def changes_of(self, spans: list[tuple[Position, Position]]) -> list[Task]:
        """What happened between two places of each of some feeds."""
        # In another life of the journal: the broker answers that it is gone.
        spans = [
            (begin, last)
            for begin, last in spans
            if begin.shard != last.shard or begin.frame < last.frame
        ]
        splits = even_share(self._splits, spans)
        tasks = []
        for begin, last in spans:
            number = feed_shard(self._client.transport, begin.shard)
            fields = {**self._changes(begin, last), "splits": splits}
            tickets = self._client.transport.shard(number).plan(fields)
            tasks += [self._task(number, ticket, shard=begin.shard) for ticket in tickets]
        return tasks

    def change_task(self, begin: Position, end: Position) -> Task:
        """All of what happened between two positions of a feed, in one task, without asking the broker."""
        number = feed_shard(self._client.transport, begin.shard)
        return self._task(number, self._changes(begin, end), shard=begin.shard)

    def _changes(self, begin: Position, end: Position) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "call": "changes",
            "shard": begin.shard,
            "after": begin.frame,
            "through": end.frame,
            "columns": self._view.wire,
        }
        topics = self._filters.words.get("topic")
        if self._options.given("topic"):
            fields["topic"] = self._options["topic"]
        elif topics:
            fields["topics"] = sorted(topics)
        if self._options.given("op"):
            self._filters.one_of("op", frozenset(self._options["op"]))
        if "op" in self._filters.words:
            # None at all would mean any.
            fields["ops"] = sorted(self._filters.words["op"]) or ["none"]
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
            "columns": self._view.wire,
        }
        number = partition_shard(self._client.transport, ticket["topic"], partition)
        return self._task(number, ticket)

    def _between_options(self) -> list[Task]:
        """Of changes or a log."""
        if self._view.name == "changes":
            return self._filtered_changes()
        start = log_place(self._client, self._options, "startingOffsets")
        end = log_place(self._client, self._options, "endingOffsets")
        return self.log(*self._clipped(start, end))

    def _filtered_changes(self) -> list[Task]:
        start = feed_place(self._client, self._options, "startingOffsets")
        end = feed_place(self._client, self._options, "endingOffsets")
        spans = self._spans(start, end)
        since, before = self._filters.low("at"), self._filters.high("at")
        transport = self._client.transport
        begins = feeds_at(transport, since) if since is not None else {}
        ends = feeds_at(transport, before) if before is not None else {}
        for number, (begin, last) in enumerate(spans):
            if begin.shard != last.shard:
                continue
            if begin.frame > last.frame:
                raise InvalidArgument(
                    f"startingOffsets lies behind endingOffsets: {begin.frame} and {last.frame}",
                    field="startingOffsets",
                )
            feed = begin.shard
            first, stop = self._filters.clip("position", begin.frame + 1, last.frame + 1)
            first = max(first, begins.get(feed, first - 1) + 1)
            stop = min(stop, ends.get(feed, stop - 1) + 1)
            spans[number] = Position(feed, first - 1), Position(feed, stop - 1)
        return self.changes_of(spans)

    def _clipped(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Offsets as far as filters leave them."""
        low, high = self._filters.low("created"), self._filters.high("created")
        since = self._offsets_at(low) if low is not None else {}
        before = self._offsets_at(high) if high is not None else {}
        first, last = {}, {}
        for number in end:
            part = int(number)
            if self._filters.clip("partition", part, part + 1) != (part, part + 1):
                continue
            begin = max(int(start[number]), since.get(number, 0))
            until = min(int(end[number]), before.get(number, int(end[number])))
            first[number], last[number] = self._filters.clip("offset", begin, until)
        return first, last

    def _offsets_at(self, time_us: int) -> dict[str, int]:
        return offsets_at(self._client.transport, self._options["topic"], max(0, time_us))


def _plain(ticket: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ticket.items() if name != "version"}
