"""Reading back from runs: what they hold must be in memory before it is due.

A partition whose entries lie in runs knows until when it has them in memory. Well before that
moment the next slice is asked for (`LoadSlice`), and storage answers with `SliceLoaded`; until
then the partition hands out nothing beyond. Partitions that will have to ask stand in a heap, so
that ten thousand of them cost nothing while none is due. The sequencer's thread only.
"""

from __future__ import annotations

import heapq

from fasti.core.commands import RunsInstalled, SliceLoaded
from fasti.core.replies import Done, LoadSlice
from fasti.core.state import ShardState
from fasti.core.timeline.partition import FOREVER, Partition
from fasti.core.work import Work

LOADED_PER_CALL = 65_536
# Rows of runs are read back this long before they are due: two slices of about a minute.
LOADED_AHEAD_US = 2 * (1 << 26)
ASKED_PER_STEP = 512


class Slices:
    """What is loaded of a shard's runs. `version` counts the sets of runs; 0: there are none."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.version = 0
        # A heap of (when to ask, topic, partition), of partitions that have not asked.
        self._to_ask: list[tuple[int, int, int]] = []

    def start(self) -> None:
        """Looks at all partitions anew: storage has changed what they have loaded."""
        self._to_ask = [
            (partition.loaded_until_us - LOADED_AHEAD_US, topic.number, partition.number)
            for topic in self._state.topics.values()
            for partition in topic.partitions.made()
            if not partition.loading and partition.loaded_until_us < FOREVER
        ]
        heapq.heapify(self._to_ask)

    def ask(self, work: Work) -> bool:
        """Asks for what will be needed soon, a bounded number a step; True if there is more."""
        asked = 0
        while self._to_ask and self._to_ask[0][0] <= work.now_us:
            if asked == ASKED_PER_STEP:
                return True
            when_us, topic, number = heapq.heappop(self._to_ask)
            partition = self.find(topic, number)
            if partition is None or partition.loading:
                continue
            if when_us != partition.loaded_until_us - LOADED_AHEAD_US:
                continue  # More was loaded since: there is another entry for that.
            partition.loading = True
            until_us = work.now_us + 2 * LOADED_AHEAD_US
            place = (topic, number, self.version)
            work.effects.append(
                LoadSlice(*place, partition.loaded_until_us, until_us, LOADED_PER_CALL)
            )
            asked += 1
        return False

    def next_us(self) -> int:
        """When the next slice has to be asked for."""
        return self._to_ask[0][0] if self._to_ask else FOREVER

    def loaded(self, work: Work, command: SliceLoaded) -> Done:
        """Storage answers: the entries take their place in time."""
        partition = self.find(command.topic, command.partition)
        if partition is None:
            return Done()
        partition.loading = False
        if command.version == self.version:
            partition.restore_entries(command.sequences, command.due_us)
            partition.load_until(command.through_us)
        if partition.loaded_until_us < FOREVER:
            when_us = partition.loaded_until_us - LOADED_AHEAD_US
            heapq.heappush(self._to_ask, (when_us, command.topic, command.partition))
        return Done()

    def installed(self, work: Work, command: RunsInstalled) -> Done:
        """Entries that runs hold now are read back when their time comes near."""
        self.version = command.version
        marks = work.state.memory.marks
        for number in set(marks.blocks()) - command.blocks:
            marks.remove_block(number)
        horizon_us = work.now_us + 2 * LOADED_AHEAD_US
        for (topic, number), first_due_us in command.first_due_us.items():
            partition = self.find(topic, number)
            if partition is None:
                continue
            partition.loading = False
            if partition.loaded_until_us == FOREVER:
                partition.loaded_until_us = max(horizon_us, partition.calendar.cursor_us)
            partition.calendar.forget(command.epoch, partition.loaded_until_us)
            if first_due_us == FOREVER:
                partition.load_until(FOREVER)
        self.start()
        return Done()

    def find(self, topic: int, partition: int) -> Partition | None:
        """The partition, unless its topic is gone, or it has nothing."""
        known = self._state.topics.get(topic)
        return known.partitions.get(partition) if known else None
