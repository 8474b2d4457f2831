"""The partitions of a topic that a shard has, where it doesn't have all of them.

A shard knows nothing of the others: a command that names a partition, a key, an id or an offset of
another shard is refused as a whole, with `wrong_shard`, and never finds wrongly that something is not
there. What names a partition that the topic doesn't have at all is left to who finds none: every shard
says the same.

A topic whose partitions are all here, and every topic of the only shard, has nothing of this
(`Topic.own` is None): commands on it are not looked at.

Any thread: nothing of it changes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Produce
from fasti.core.layout import Layout, ShardPlace
from fasti.errors import WrongShard
from fasti.model import SEQUENCE_BITS, TopicSettings

if TYPE_CHECKING:
    from fasti.core.keys import Keys

Int64s = NDArray[np.int64]


def own_partitions(settings: TopicSettings, place: ShardPlace) -> OwnPartitions | None:
    """Those of a topic with these settings; None: all of them are here."""
    layout = Layout.of(settings, place.count)
    numbers: list[int] = layout.own(place.number).tolist()
    return None if len(numbers) == settings.partitions else OwnPartitions(layout, numbers)


class OwnPartitions:
    """Some of a topic's partitions, or none."""

    __slots__ = ("_is_own", "_layout", "numbers")

    def __init__(self, layout: Layout, numbers: list[int]) -> None:
        self.numbers, self._layout = numbers, layout
        self._is_own = np.zeros(layout.partitions, dtype=np.bool_)
        self._is_own[numbers] = True

    def at_turn(self, topic: str, turn: int) -> int:
        """The partition whose turn it is. Raises `wrong_shard` if there is none here."""
        if not self.numbers:
            raise WrongShard(
                f"no partition of {topic!r} is on this shard: rows without a key go to one that has "
                "some",
                details={"topic": topic},
            )
        return self.numbers[turn % len(self.numbers)]

    def next_from(self, number: int) -> int:
        """The first of these partitions with that number or a higher one; their count if none has."""
        place = bisect_left(self.numbers, number)
        return self.numbers[place] if place < len(self.numbers) else self._layout.partitions

    def has_ids(self, ids: Int64s) -> bool:
        """Whether none of the messages is another shard's."""
        return not len(self._foreign(ids >> SEQUENCE_BITS))

    def check_numbers(self, topic: str, numbers: Int64s) -> None:
        """Raises `wrong_shard` if one of these partitions is another shard's."""
        foreign = self._foreign(numbers)
        if not len(foreign):
            return
        details: dict[str, Any] = {"topic": topic}
        shards = np.unique(self._layout.by_partition[foreign]).tolist()
        if len(shards) == 1 and len(foreign) == len(numbers):
            details["shard"] = shards[0]
        told = " and ".join(str(shard) for shard in shards[:3]) + (", ..." * (len(shards) > 3))
        raise WrongShard(
            f"partition {int(foreign[0])} of {topic!r} is not on this shard, but on {told}: "
            "nothing was done",
            details=details,
        )

    def _foreign(self, numbers: Int64s) -> Int64s:
        if len(numbers) and (first := int(numbers.min())) == int(numbers.max()):
            # Mostly: a shard has few partitions of a topic, and what was leased together is returned so.
            if 0 <= first < self._layout.partitions and self._is_own[first]:
                return numbers[:0]
        there = numbers[(numbers >= 0) & (numbers < self._layout.partitions)]
        return there[~self._is_own[there]]

    def check_command(self, topic: str, command: Any) -> None:
        """Looks at all that a command on the topic names. Raises `wrong_shard`."""
        ids = getattr(command, "ids", None)
        keys = getattr(command, "keys", None)
        target = getattr(command, "target", None)
        if target is not None and not isinstance(target, str):
            ids, keys = target.ids, target.keys
        if ids is not None:
            self.check_numbers(topic, ids >> SEQUENCE_BITS)
        elif keys is not None:
            self.check_numbers(topic, self._partitions_of(keys)[keys.given])
        partition = getattr(command, "partition", None)
        if partition is not None:
            self.check_numbers(topic, np.array([partition]))
        elif isinstance(command, Produce) and (keys is None or not keys.given.all()):
            # Before anything of it is put: rows without a key need a partition here.
            self.at_turn(topic, 0)

    def _partitions_of(self, keys: Keys) -> Int64s:
        count = self._layout.partitions
        return keys.ranked(count) if self._layout.is_log else keys.partitions(count)
