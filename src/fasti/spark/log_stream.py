"""Logs as streams."""

from __future__ import annotations

from fasti.client.log import LogPartition
from fasti.spark.places import LOG, Offsets, log_place, of_log
from fasti.spark.shards import describe_log
from fasti.spark.streams import OffsetStream
from fasti.spark.tickets import Task

# Rows of one task at least, if `minPartitions` doesn't ask for more tasks.
_ROWS_SMALL = 50_000
_KEEP_LONGER = (
    "The log drops rows by its settings segment_age and retained_bytes, or was truncated: raise "
    "these, or run the query more often."
)
_MADE_AGAIN = "A new query, with a new checkpoint, begins with what there is."


class LogStream(OffsetStream):
    """The rows of a log. Offsets are `{"log": "0.9f3c…:4", "0": 12, "1": 7}`."""

    def _describe(self) -> tuple[str, dict[str, LogPartition]]:
        identity, partitions = describe_log(
            self._client.transport, self._options["topic"], self._options["timeout"]
        )
        self._latest = {LOG: identity, **{n: part.end for n, part in partitions.items()}}
        return identity, partitions

    def _starting(self) -> Offsets:
        identity, _ = self._describe()
        return {LOG: identity, **log_place(self._client, self._options, "startingOffsets")}

    def _end(self) -> Offsets:
        identity, partitions = self._describe()
        return {LOG: identity, **{n: partition.end for n, partition in partitions.items()}}

    def _look(self, start: Offsets) -> Offsets:
        return self._begins(start, *self._describe())

    def _begins(
        self, start: Offsets, identity: str, partitions: dict[str, LogPartition]
    ) -> Offsets:
        topic = self._options["topic"]
        if of_log(start, topic)[LOG] != identity:
            self._report_loss(
                f"The topic {topic!r} is not the one that was read until now: it was deleted and "
                "made again, or the broker's data was replaced.",
                _MADE_AGAIN,
                {"topic": topic, "log": start[LOG], "now": identity},
            )
            return {LOG: identity, **{n: partition.earliest for n, partition in partitions.items()}}
        offsets: Offsets = {LOG: identity}
        for number, partition in partitions.items():
            offset = int(start[number])
            offsets[number] = max(offset, partition.earliest)
            if offset < partition.earliest:
                self._report_loss(
                    f"Rows {offset} to {partition.earliest - 1} of partition {number} of {topic!r} were "
                    "dropped before they were read.",
                    _KEEP_LONGER,
                    {
                        "topic": topic,
                        "partition": partition.partition,
                        "earliest": partition.earliest,
                    },
                )
        return offsets

    def _ending(self, start: Offsets, rows: int | None) -> Offsets:
        identity, partitions = self._describe()
        begin = self._begins(start, identity, partitions)
        self._looked = start, begin
        end = {number: partition.end for number, partition in partitions.items()}
        if self._target is not None and self._target[LOG] == identity:
            end = {n: max(begin[n], min(at, self._target[n])) for n, at in end.items()}
        return {LOG: identity, **(end if rows is None else shared(begin, end, rows))}

    def _work(self, start: Offsets, end: Offsets) -> list[list[Task]]:
        begin = self._begin(start)
        if begin[LOG] != end[LOG]:
            # All of it is gone, with the topic that it was in.
            return []
        spans = {n: (begin[n], at) for n, at in end.items() if n != LOG and at > begin[n]}
        total = sum(last - first for first, last in spans.values())
        planner = self._planner()
        if total <= _ROWS_SMALL and not self._options["minPartitions"]:
            tasks = [planner.log_task(int(n), first, last) for n, (first, last) in spans.items()]
            return [tasks] if tasks else []
        first = {n: first for n, (first, _) in spans.items()}
        return [[task] for task in planner.log(first, {n: end[n] for n in spans})]


def shared(begin: Offsets, end: Offsets, rows: int) -> Offsets:
    """Where so many rows end: each partition has its share of them, by how many it has."""
    waiting = {number: int(at) - int(begin[number]) for number, at in end.items()}
    total = sum(waiting.values())
    if total <= rows:
        return end
    shares = {number: count * rows // total for number, count in waiting.items()}
    left = rows - sum(shares.values())
    for number, count in waiting.items():
        # What rounding left over: less than one for each partition that has any.
        if left and shares[number] < count:
            shares[number] += 1
            left -= 1
    return {number: int(begin[number]) + share for number, share in shares.items()}
