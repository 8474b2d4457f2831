"""Where reads begin and end: from the options' words to offsets that Spark can keep.

Offsets are JSON: of the change feed `{"shard": "…", "frame": 97}`, of a log `{"0": 12, "1": 7}`, the
next row of each partition.
"""

from __future__ import annotations

from typing import Any

from fasti.client.changes import Position, feed_bounds
from fasti.client.client import Client
from fasti.client.durations import moment_us
from fasti.errors import InvalidArgument
from fasti.spark.options import Options

Offsets = dict[str, Any]


def feed_place(client: Client, options: Options, which: str) -> Offsets:
    """`startingOffsets` or `endingOffsets` of the change feed."""
    if which == "startingOffsets" and options.given("startingTimestamp"):
        at_us = moment_us(options["startingTimestamp"], "startingTimestamp")
        header, _ = client.transport.call("feed", {"time_us": at_us})
        return {"shard": header["shard"], "frame": int(header["position"])}
    given = options[which]
    bounds = feed_bounds(client.transport)
    if given == "earliest":
        return as_offsets(bounds.first)
    if given == "latest":
        return as_offsets(bounds.last)
    if set(given) != {"shard", "frame"}:
        raise InvalidArgument(
            f'{which} of the change feed is {{"shard": "…", "frame": 5}}', field=which
        )
    return {"shard": str(given["shard"]), "frame": int(given["frame"])}


def as_offsets(position: Position) -> Offsets:
    """A position as JSON."""
    return {"shard": position.shard, "frame": position.frame}


def log_place(client: Client, options: Options, which: str) -> Offsets:
    """`startingOffsets` or `endingOffsets` of a log."""
    topic = options["topic"]
    partitions = client.log(topic).describe()
    if which == "startingOffsets" and options.given("startingTimestamp"):
        at_us = moment_us(options["startingTimestamp"], "startingTimestamp")
        header, _ = client.transport.call("offsets", {"topic": topic, "time_us": at_us})
        return {str(number): int(at) for number, at in header["offsets"].items()}
    given = options[which]
    if given == "earliest":
        return {str(each.partition): each.earliest for each in partitions}
    if given == "latest":
        return {str(each.partition): each.end for each in partitions}
    known = {str(each.partition) for each in partitions}
    if set(given) != known:
        raise InvalidArgument(
            f"{which} names every partition of {topic!r}: {', '.join(sorted(known))}", field=which
        )
    return {number: int(at) for number, at in given.items()}
