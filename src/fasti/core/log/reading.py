"""Answering what is asked about the rows of logs. Nothing here changes anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Count, Get
from fasti.core.log.body import log_of, own_numbers, partition_of
from fasti.core.log.commands import DescribeLog, FindOffset, LogPage, LogSums, ReadLog, SumLog
from fasti.core.log.partition import LogPartition
from fasti.core.replies import Counts, Done, Messages
from fasti.core.timeline.reads import READY
from fasti.core.work import Work
from fasti.errors import Gone, InvalidArgument
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK, Outcome

# As timeline/reads.py gives messages of other kinds.
_MESSAGE_COLUMNS = (
    *("due_us", "version", "state", "attempts", "location"),
    *("owner", "consumer", "reason"),
)
_READ_ROWS_MAX = 1 << 20


def read(work: Work, command: ReadLog) -> LogPage:
    """Where the next rows lie; `gone` below the earliest."""
    partition = partition_of(work.topic(command.topic), command.partition)
    offset, end = command.offset, partition.next_offset
    if not 0 <= offset <= end:
        raise InvalidArgument(
            f"partition {partition.number} ends at {end}: there is no offset {offset} yet",
            field="offset",
            limit=end,
        )
    if offset < partition.earliest:
        raise _gone(partition, offset)
    rows_max = min(max(1, command.rows_max), _READ_ROWS_MAX)
    return LogPage(partition.earliest, end, partition.locate(offset, rows_max))


def find(work: Work, command: FindOffset) -> LogPage:
    """The piece with the first row at a time or later."""
    partition = partition_of(work.topic(command.topic), command.partition)
    piece = partition.find_time(command.time_us)
    pieces = [] if piece is None else [piece]
    return LogPage(partition.earliest, partition.next_offset, pieces)


def describe(work: Work, command: DescribeLog) -> Done:
    """Each partition of this shard in numbers."""
    topic = work.topic(command.topic)
    partitions = log_of(topic).partitions
    numbers = own_numbers(topic)
    return Done([describe_partition(partitions.look(number)) for number in numbers])


def count(work: Work, command: Count) -> Counts:
    """Rows, all of which are ready, and what groups have leased and buried."""
    log = log_of(work.topic(command.topic))
    places = [p for group in log.groups.by_number.values() for p in group.partitions.made()]
    words = ("scheduled", "ready", "leased", "dead", "staged", "done", "cancelled")
    states = dict.fromkeys(words, 0)
    states["ready"] = sum(len(partition) for partition in log.partitions.made())
    states["leased"] = sum(place.leased for place in places)
    states["dead"] = sum(place.dead.count for place in places)
    return Counts(states, work.state.next_frame - 1)


def sum_up(work: Work, command: SumLog) -> Done:
    """The log and its groups in sums, which are kept up with every event."""
    topic = work.topic(command.topic)
    log = log_of(topic)
    groups = {
        group.name: (log.end - group.sums.next + group.sums.unfinished, group.sums)
        for group in log.groups.by_number.values()
    }
    numbers = log.earliest, log.end, log.size_bytes
    return Done(LogSums(len(own_numbers(topic)), *numbers, dict(log.dropped), groups))


def get(work: Work, command: Get) -> Messages:
    """Where rows lie now, by id: a delivery's may have moved."""
    topic = work.topic(command.topic)
    ids = command.target.ids
    if ids is None:
        raise InvalidArgument("in a log a key only routes: name rows by id", field="key")
    status = np.full(len(ids), Outcome.NOT_FOUND, dtype=np.uint8)
    columns: dict[str, NDArray[Any]] = {
        name: np.zeros(len(ids), dtype=np.int64) for name in _MESSAGE_COLUMNS
    }
    partitions = log_of(topic).partitions
    numbers, offsets = ids >> SEQUENCE_BITS, (ids & SEQUENCE_MASK) - 1
    for number in np.unique(numbers).tolist():
        if not 0 <= number < len(partitions):
            continue
        partition = partitions.look(number)
        mine = np.flatnonzero(numbers == number)
        wanted = offsets[mine]
        status[mine[(wanted >= 0) & (wanted < partition.earliest)]] = Outcome.GONE
        here = (wanted >= partition.earliest) & (wanted < partition.next_offset)
        mine, wanted = mine[here], wanted[here]
        if len(mine):
            status[mine] = Outcome.OK
            columns["due_us"][mine] = partition.times_of(wanted)
            columns["location"][mine] = partition.locations_of(wanted)
            columns["version"][mine] = 1
            columns["state"][mine] = READY
    return Messages(status, ids, columns, work.state.memory.names())


def _gone(partition: LogPartition, offset: int) -> Gone:
    return Gone(
        f"partition {partition.number} begins at offset {partition.earliest} now: {offset} is gone",
        details={
            "partition": partition.number,
            "earliest": partition.earliest,
            "lost": partition.earliest - offset,
        },
    )


def describe_partition(partition: LogPartition) -> dict[str, int]:
    """A partition in numbers."""
    segments = partition.segments
    return {
        "partition": partition.number,
        "earliest": partition.earliest,
        "end": partition.next_offset,
        "rows": len(partition),
        "bytes": segments.size_bytes,
        "segments": len(segments),
        "earliest_us": segments[0].from_us if segments else 0,
        "latest_us": segments[-1].to_us if segments else 0,
    }
