"""What the connector asks of every shard, and puts together: in the driver, before tasks run.

Tasks ask the shard that has what they read. Where a broker has one shard each of these is one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fasti.client.log import LogPartition
from fasti.client.position import shard_number
from fasti.client.transport import Transport
from fasti.errors import NotFound, WrongShard

if TYPE_CHECKING:
    from collections.abc import Iterable


def shards_of(transport: Transport, topic: str) -> list[int]:
    """The shards that have something of a topic. Raises `not_found` where there are several."""
    return [0] if transport.shard_count == 1 else transport.layout(topic).all_shards


def partition_shard(transport: Transport, topic: str, partition: int) -> int:
    """The shard of a partition."""
    return 0 if transport.shard_count == 1 else transport.layout(topic).shard_of(partition)


def feed_shard(transport: Transport, feed: str) -> int:
    """The shard that a change feed is of. Raises `invalid_argument`.

    Of one that there is not: any, which answers that it is gone.
    """
    return 0 if transport.shard_count == 1 else shard_number(feed) % transport.shard_count


def describe_log(
    transport: Transport, topic: str, timeout_s: float | None = None
) -> tuple[str, dict[str, LogPartition]]:
    """Which log it is, and its partitions by their numbers as JSON has them."""
    try:
        found = _described(transport, topic, timeout_s)
        if transport.shard_count == 1 or len(found[1]) == transport.layout(topic).partitions:
            return found
    except (WrongShard, NotFound):
        if transport.shard_count == 1:
            raise
    # The topic was deleted and made anew, perhaps on other shards.
    transport.forget_layout(topic)
    return _described(transport, topic, timeout_s)


def _described(
    transport: Transport, topic: str, timeout_s: float | None
) -> tuple[str, dict[str, LogPartition]]:
    identities, partitions = [], list[LogPartition]()
    for number in shards_of(transport, topic):
        header, _ = transport.shard(number).call("log", {"topic": topic}, timeout=timeout_s)
        identities.append(str(header["identity"]))
        partitions += [LogPartition.of_reply(partition) for partition in header["partitions"]]
    partitions.sort(key=lambda partition: partition.partition)
    return ",".join(identities), {str(part.partition): part for part in partitions}


def offsets_at(transport: Transport, topic: str, time_us: int) -> dict[str, int]:
    """The first row of each partition that was appended then or later."""
    offsets: dict[str, int] = {}
    for number in shards_of(transport, topic):
        fields = {"topic": topic, "time_us": time_us}
        header, _ = transport.shard(number).call("offsets", fields)
        offsets |= {name: int(at) for name, at in header["offsets"].items()}
    return offsets


def feeds_at(transport: Transport, time_us: int) -> dict[str, int]:
    """Where each shard's feed was at a time."""
    frames: dict[str, int] = {}
    for number in range(transport.shard_count):
        header, _ = transport.shard(number).call("feed", {"time_us": max(0, time_us)})
        frames[header["shard"]] = int(header["position"])
    return frames


def even_share(splits: int, parts: Iterable[Any]) -> int:
    """How many tasks each part gets so that all together are about so many; at least one."""
    return max(1, -(-splits // max(1, len(list(parts)))))
