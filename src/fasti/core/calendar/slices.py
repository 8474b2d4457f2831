"""Reading back from runs: what they hold must be in memory before it is due.

A partition whose entries lie in runs knows until when it has them in memory. Well before that
moment the next slice is asked for (`LoadSlice`), and storage answers with `SliceLoaded`; until
then the partition hands out nothing beyond. Asking is planned, so that ten thousand partitions cost
nothing while none is due. The sequencer's thread only.
"""

from __future__ import annotations

from fasti.core.agenda import FOREVER, Agenda
from fasti.core.commands import RowsInstalled, RunsInstalled, SliceLoaded
from fasti.core.replies import Done, LoadSlice
from fasti.core.rows.arena import CHANGED
from fasti.core.state import ShardState
from fasti.core.timeline.partition import Partition
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
        # When to ask, of partitions that have not asked: (topic, partition).
        self.agenda: Agenda[tuple[int, int]] = Agenda()

    def start(self) -> None:
        """Looks at all partitions anew: storage has changed what they have loaded."""
        self.agenda = Agenda()
        for topic in self._state.topics.values():
            for partition in topic.partitions.made():
                if not partition.times.loading and partition.times.loaded_until_us < FOREVER:
                    self._plan(partition)

    def _plan(self, partition: Partition) -> None:
        place = partition.topic, partition.number
        self.agenda.plan(place, partition.times.loaded_until_us - LOADED_AHEAD_US)

    def ask(self, work: Work) -> bool:
        """Asks for what will be needed soon, a bounded number a step; True if there is more.

        Called when `agenda` says that a moment may have come.
        """
        until_us = work.now_us + 2 * LOADED_AHEAD_US
        for _ in range(ASKED_PER_STEP):
            place = self.agenda.pop(work.now_us)
            if place is None:
                return False
            partition = self.find(*place)
            if partition is None or partition.times.loading:
                continue
            partition.times.loading = True
            range_us = partition.times.loaded_until_us, until_us
            work.effects.append(LoadSlice(*place, self.version, *range_us, LOADED_PER_CALL))
        return self.agenda.next_us() <= work.now_us

    def loaded(self, work: Work, command: SliceLoaded) -> Done:
        """Storage answers: the entries take their place in time."""
        partition = self.find(command.topic, command.partition)
        if partition is None:
            return Done()
        times = partition.times
        times.loading = False
        if command.version == self.version:
            times.restore_entries(command.sequences, command.due_us)
            times.load_until(command.through_us)
        if times.loaded_until_us < FOREVER:
            self._plan(partition)
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
            times = partition.times
            times.loading = False
            if times.loaded_until_us == FOREVER:
                times.loaded_until_us = max(horizon_us, times.calendar.cursor_us)
            times.calendar.forget(command.epoch, times.loaded_until_us)
            if first_due_us == FOREVER:
                times.load_until(FOREVER)
        self.start()
        return Done()

    def rows_installed(self, work: Work, command: RowsInstalled) -> Done:
        """Payloads moved from the journal, or from older blocks, into a new run."""
        memory = work.state.memory
        partition = self.find(command.topic, command.partition)
        gone = command.new_locations
        if partition is not None:
            arena = memory.arena
            slots = partition.ledger.slots(command.sequences)
            here = arena.location.take(slots) == command.old_locations
            here &= partition.states(slots) != 0
            moved = slots[here]
            arena.before_write(moved)
            arena.location[moved] = command.new_locations[here]
            # Unless it has changed since the snapshot, the run's row is what the message is.
            same = moved[arena.epoch.take(moved) != memory.epoch_byte]
            arena.flags[same] &= ~CHANGED
            gone = command.new_locations[~here]
        memory.marks.kill(gone)
        return Done()

    def find(self, topic: int, partition: int) -> Partition | None:
        """The partition, unless its topic is gone, or it has nothing."""
        known = self._state.topics.get(topic)
        return known.partitions.get(partition) if known else None
