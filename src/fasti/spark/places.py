"""Where reads begin and end: from the options' words to offsets that Spark can keep.

Offsets are JSON: of the change feed `{"0.9f3c…": 97}`, the position in the feed of each shard; of a log
`{"0": 12, "1": 7}`, the next row of each partition. Those that Spark keeps of a log also say which
one it is (`"log": "0.9f3c…:4"`): one that was made again under the same name is another.
"""

from __future__ import annotations

import json
from typing import Any

from fasti.client.changes import feed_bounds
from fasti.client.client import Client
from fasti.client.durations import moment_us
from fasti.client.log import LogPartition
from fasti.client.position import Position, by_shard
from fasti.errors import InvalidArgument
from fasti.protocol.feed_name import is_nameless
from fasti.spark.options import Options
from fasti.spark.shards import describe_log, feeds_at, offsets_at

Offsets = dict[str, Any]
# Which log the offsets are of, beside its partitions.
LOG = "log"


def feed_place(client: Client, options: Options, which: str) -> Offsets:
    """`startingOffsets` or `endingOffsets` of the change feed."""
    by_time = which.replace("Offsets", "Timestamp")
    if options.given(by_time):
        return dict(feeds_at(client.transport, moment_us(options[by_time], by_time)))
    value = options[which]
    bounds = feed_bounds(client.transport)
    if value == "earliest":
        return as_offsets(bounds.first)
    if value == "latest":
        return as_offsets(bounds.last)
    # In another life of a shard's journal: the broker answers that it is gone.
    count = client.transport.shard_count
    if len(value) != count or not all(map(is_offset, value.values())):
        example = json.dumps(dict.fromkeys(bounds.last.frames, 5))
        raise InvalidArgument(
            f"{which} of this change feed is {example}, not {json.dumps(value)}", field=which
        )
    by_shard(value, count, which)
    return dict(value)


def is_offset(value: Any) -> bool:
    """Whether it is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def as_offsets(position: Position) -> Offsets:
    """A position as JSON."""
    return dict(position.frames)


def position_of(offsets: Offsets) -> Position:
    """The position that JSON stands for, in the feed of each shard.

    Raises `invalid_argument` for offsets of another view, which a checkpoint may have.
    """
    if not offsets or LOG in offsets:
        raise InvalidArgument(_foreign("changes", offsets), field="checkpointLocation")
    if any(is_nameless(shard) for shard in offsets):
        raise InvalidArgument(
            f"{json.dumps(offsets)} was written by an older version, whose positions did not name "
            "the shard: begin with a new checkpointLocation (startingTimestamp says from when)",
            field="checkpointLocation",
        )
    return Position.of({shard: int(frame) for shard, frame in offsets.items()})


def of_log(offsets: Offsets, topic: str) -> Offsets:
    """The same, if they are of a log. Raises `invalid_argument`."""
    if LOG not in offsets:
        raise InvalidArgument(_foreign(f"log {topic!r}", offsets), field="checkpointLocation")
    return offsets


def _foreign(expected: str, offsets: Offsets) -> str:
    return (
        f"the checkpoint has other offsets than those of {expected}: {json.dumps(offsets)}. A query "
        "that reads something else needs a checkpointLocation of its own"
    )


def log_place(client: Client, options: Options, which: str) -> Offsets:
    """`startingOffsets` or `endingOffsets` of a log."""
    topic = options["topic"]
    by_time = which.replace("Offsets", "Timestamp")
    if options.given(by_time):
        at_us = moment_us(options[by_time], by_time)
        return dict(offsets_at(client.transport, topic, at_us))
    _, by_number = describe_log(client.transport, topic)
    value = options[which]
    if value == "earliest":
        return {number: partition.earliest for number, partition in by_number.items()}
    if value == "latest":
        return {number: partition.end for number, partition in by_number.items()}
    if set(value) != set(by_number):
        raise InvalidArgument(
            f"{which} must name every partition of {topic!r}: {', '.join(by_number)}", field=which
        )
    return {number: _offset_of(by_number[number], value[number], which) for number in by_number}


def _offset_of(partition: LogPartition, value: Any, which: str) -> int:
    if value in ("earliest", "latest"):
        return partition.earliest if value == "earliest" else partition.end
    if not is_offset(value) or value > partition.end:
        raise InvalidArgument(
            f"{which} of partition {partition.partition} is earliest, latest or an offset up to "
            f"{partition.end}, not {json.dumps(value)}",
            field=which,
            limit=partition.end,
        )
    return int(value)
