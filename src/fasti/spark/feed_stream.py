"""The change feed as a stream."""

from __future__ import annotations

import time
from typing import Any

from fasti.client.changes import Position, feed_bounds
from fasti.errors import FastiError
from fasti.spark.options import Options
from fasti.spark.places import Offsets, as_offsets, feed_place, position_of
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
    """What happened, in order. Offsets are positions: `{"0.9f3c…": 97}`."""

    def __init__(self, options: Options, view: View) -> None:
        super().__init__(options, view)
        # Up to here nothing happened to the topic since the micro-batch before.
        self._quiet: Position | None = None
        self._moved_at = time.monotonic()

    def _starting(self) -> Offsets:
        return feed_place(self._client, self._options, "startingOffsets")

    def _end(self) -> Offsets:
        return as_offsets(feed_bounds(self._client.transport).last)

    def _ask(self, begin: Position, rows: int | None = None) -> dict[str, Any]:
        """The feed's ends, and where so many rows behind a position end. Raises `gone`."""
        fields: dict[str, Any] = {"shard": begin.shard, "after": begin.frame}
        if rows is not None:
            fields["rows"] = rows
            fields["topic"] = self._options["topic"] or ""
        header = self._call("feed", fields)
        self._latest = {header["shard"]: int(header["last"])}
        return header

    def _look(self, start: Offsets) -> Offsets:
        try:
            self._ask(position_of(start))
        except FastiError as error:
            return as_offsets(self._after_loss(position_of(start), error))
        return start

    def _after_loss(self, position: Position, error: FastiError) -> Position:
        """Where to go on when the broker doesn't have what comes after a position."""
        if error.code not in ("gone", "not_found"):
            raise error
        bounds = feed_bounds(self._client.transport)
        first, last = bounds.first, bounds.last
        details = {"position": position.frame, "first": first.frame, "last": last.frame}
        if position.shard != first.shard:
            self._report_loss(
                f"Position {position.frame} is of the change feed {position.shard}, and the broker at "
                f"{self._options['address']} has another one, {first.shard}.",
                _OTHER_DATA,
                details,
            )
            return first
        if position.frame > last.frame:
            self._report_loss(
                f"The change feed ends with position {last.frame}, before {position.frame}, which was "
                "read already.",
                _OTHER_DATA,
                details,
            )
            return last
        self._report_loss(
            f"What happened after position {position.frame}, up to {first.frame}, is gone from the "
            "change feed.",
            _KEEP_LONGER,
            details,
        )
        return first

    def _ending(self, start: Offsets, rows: int | None) -> Offsets:
        begin = self._passed(position_of(start))
        # Of one topic: whether there is anything.
        limit = 1 if rows is None and self._options.given("topic") else rows
        try:
            header = self._ask(begin, limit)
        except FastiError as error:
            begin = self._after_loss(begin, error)
            header = self._ask(begin, limit)
        self._looked = start, as_offsets(begin)
        end = int(header["last"] if rows is None else header["position"])
        if limit is not None and not header["rows"]:
            end = int(header["position"])
            self._quiet = Position(begin.shard, end)
            if self._may_stay(position_of(start)):
                return start
        if self._target is not None:
            target = position_of(self._target)
            if target.shard == begin.shard:
                end = max(begin.frame, min(end, target.frame))
        offsets = {begin.shard: end}
        if offsets != start:
            self._moved_at = time.monotonic()
        return offsets

    def _passed(self, start: Position) -> Position:
        """Behind what is known to have nothing of the topic."""
        quiet = self._quiet
        return start if quiet is None or quiet.shard != start.shard else max(start, quiet)

    def _may_stay(self, start: Position) -> bool:
        """Whether a checkpoint may stay where it is while only other topics have news.

        It saves micro-batches without rows. Now and then it moves all the same, so that it isn't
        left behind by what the broker keeps.
        """
        assert self._quiet is not None
        if self._target is not None or start.shard != self._quiet.shard:
            return False
        near = self._quiet.frame - start.frame < _QUIET_FRAMES
        return near and time.monotonic() - self._moved_at < _QUIET_S

    def _work(self, start: Offsets, end: Offsets) -> list[list[Task]]:
        begin, last = position_of(self._begin(start)), position_of(end)
        if begin.shard != last.shard:
            # All of it is gone, with the data that it was in.
            return []
        planner = self._planner()
        frames = last.frame - begin.frame
        if 0 < frames <= _FRAMES_SMALL and not self._options["minPartitions"]:
            return [[planner.change_task(begin, last)]]
        return [[task] for task in planner.changes(as_offsets(begin), end)]
