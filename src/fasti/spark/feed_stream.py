"""The change feed as a stream."""

from __future__ import annotations

import time
from typing import Any

from fasti.client.changes import feed_bounds
from fasti.client.position import Position, by_shard
from fasti.errors import FastiError
from fasti.spark.options import Options
from fasti.spark.places import Offsets, as_offsets, feed_place, position_of
from fasti.spark.shards import feed_shard
from fasti.spark.streams import OffsetStream
from fasti.spark.tickets import Task
from fasti.spark.views import View

# So many frames of the journal are one task: a frame has up to some thousand rows, mostly few.
_FRAMES_SMALL = 32
# A checkpoint stays for so long at most while nothing happens to its topic.
_QUIET_S, _QUIET_FRAMES = 60.0, 100_000
_KEEP_LONGER = (
    "The broker keeps the feed for feed_age, as far as feed_size allows: raise these, or run the "
    "query more often."
)
_OTHER_DATA = (
    "Was the broker's data replaced or restored? A new query, with a new checkpoint, begins with "
    "what there is."
)


class FeedStream(OffsetStream):
    """What happened, in order in each shard. Offsets are positions: `{"0.9f3c…": 97}`."""

    def __init__(self, options: Options, view: View) -> None:
        super().__init__(options, view)
        # Up to here nothing happened to the topic since the micro-batch before, in each feed.
        self._quiet: dict[str, int] = {}
        self._moved_at = time.monotonic()

    def _starting(self) -> Offsets:
        return feed_place(self._client, self._options, "startingOffsets")

    def _end(self) -> Offsets:
        return as_offsets(feed_bounds(self._client.transport).last)

    def _places(self, offsets: Offsets) -> list[Position]:
        """The place in each shard, by their numbers."""
        count = self._client.transport.shard_count
        return by_shard(position_of(offsets).frames, count, "checkpointLocation")

    def _ask(self, begin: Position, rows: int | None = None) -> dict[str, Any]:
        """A feed's ends, and where so many rows behind a position end. Raises `gone`."""
        fields: dict[str, Any] = {"shard": begin.shard, "after": begin.frame}
        if rows is not None:
            fields["rows"] = rows
            fields["topic"] = self._options["topic"] or ""
        transport = self._client.transport
        shard = transport.shard(feed_shard(transport, begin.shard))
        header, _ = shard.call("feed", fields, timeout=self._options["timeout"])
        return header

    def _look(self, start: Offsets) -> Offsets:
        begins: Offsets = {}
        for place in self._places(start):
            try:
                self._ask(place)
            except FastiError as error:
                place = self._after_loss(place, error)
            begins[place.shard] = place.frame
        return begins

    def _after_loss(self, position: Position, error: FastiError) -> Position:
        """Where to go on when the broker doesn't have what comes after a position."""
        if error.code not in ("gone", "not_found"):
            raise error
        transport = self._client.transport
        shard = transport.shard(feed_shard(transport, position.shard))
        header, _ = shard.call("feed", {})
        first, last = (Position(header["shard"], int(header[end])) for end in ("first", "last"))
        details: dict[str, Any] = {
            "position": position.frame,
            "first": first.frame,
            "last": last.frame,
        }
        if transport.shard_count > 1:
            details["shard"] = position.shard
        if position.shard != first.shard:
            self._report_loss(
                f"Position {position.frame} is of the change feed {position.shard}, and the broker at "
                f"{self._options['address']} has another one, {first.shard}.",
                _OTHER_DATA,
                details,
            )
            return first
        of_shard = "" if transport.shard_count == 1 else f" {position.shard}"
        if position.frame > last.frame:
            self._report_loss(
                f"The change feed{of_shard} ends with position {last.frame}, before "
                f"{position.frame}, which was read already.",
                _OTHER_DATA,
                details,
            )
            return last
        self._report_loss(
            f"What happened after position {position.frame}, up to {first.frame}, is gone from the "
            f"change feed{of_shard}.",
            _KEEP_LONGER,
            details,
        )
        return first

    def _ending(self, start: Offsets, rows: int | None) -> Offsets:
        begins = [self._passed(place) for place in self._places(start)]
        # Of one topic: whether there is anything.
        limit = 1 if rows is None and self._options.given("topic") else rows
        asked = self._ask_all(begins, limit, rows)
        self._looked = start, {begin.shard: begin.frame for begin in begins}
        self._latest = {header["shard"]: int(header["last"]) for header in asked}
        ends = {
            begin.shard: int(header["last"] if rows is None else header["position"])
            for begin, header in zip(begins, asked, strict=True)
        }
        if limit is not None:
            for begin, header in zip(begins, asked, strict=True):
                if not header["rows"]:
                    ends[begin.shard] = self._quiet[begin.shard] = int(header["position"])
            if not any(header["rows"] for header in asked) and self._may_stay(start):
                return start
        for begin in begins:
            target = None if self._target is None else self._target.get(begin.shard)
            if target is not None:
                ends[begin.shard] = max(begin.frame, min(ends[begin.shard], int(target)))
        if ends != start:
            self._moved_at = time.monotonic()
        return dict(ends)

    def _ask_all(
        self, begins: list[Position], limit: int | None, rows: int | None
    ) -> list[dict[str, Any]]:
        """Asks every shard; a limit of rows is shared, and what one leaves others may have.

        Where something was lost `begins` is changed to where it goes on.
        """
        share = limit if limit is None or rows is None else max(1, -(-limit // len(begins)))
        asked = []
        for number, begin in enumerate(begins):
            try:
                asked.append(self._ask(begin, share))
            except FastiError as error:
                begins[number] = self._after_loss(begin, error)
                asked.append(self._ask(begins[number], share))
        if rows is None or share is None or len(begins) == 1:
            return asked
        full = [n for n, header in enumerate(asked) if int(header["rows"]) >= share]
        left = rows - sum(int(header["rows"]) for header in asked)
        more = left // len(full) if full else 0
        for number in full if more > 0 else ():
            asked[number] = self._ask(begins[number], share + more)
        return asked

    def _passed(self, start: Position) -> Position:
        """Behind what is known to have nothing of the topic."""
        return Position(start.shard, max(start.frame, self._quiet.get(start.shard, 0)))

    def _may_stay(self, start: Offsets) -> bool:
        """Whether a checkpoint may stay where it is while only other topics have news.

        It saves micro-batches without rows. Now and then it moves all the same, so that it isn't
        left behind by what the broker keeps.
        """
        if self._target is not None or not start.keys() <= self._quiet.keys():
            return False
        near = all(self._quiet[feed] - int(at) < _QUIET_FRAMES for feed, at in start.items())
        return near and time.monotonic() - self._moved_at < _QUIET_S

    def _work(self, start: Offsets, end: Offsets) -> list[list[Task]]:
        begins, ends = self._places(self._begin(start)), self._places(end)
        spans = [
            (begin, last)
            for begin, last in zip(begins, ends, strict=True)
            # Where they differ all of it is gone, with the data that it was in.
            if begin.shard == last.shard and begin.frame < last.frame
        ]
        planner = self._planner()
        frames = sum(last.frame - begin.frame for begin, last in spans)
        if frames <= _FRAMES_SMALL and not self._options["minPartitions"]:
            return [[planner.change_task(*span) for span in spans]] if spans else []
        return [[task] for task in planner.changes_of(spans)]
