"""The snapshots that are open: how many there may be, and when they go.

A snapshot goes when it is dropped, or in the step that finds its deadline passed. That of a checkpoint
has no deadline. Only the sequencer's thread changes anything here; any thread may look a number up.
"""

from __future__ import annotations

from fasti.core.agenda import FOREVER
from fasti.core.commands import DropSnapshot, KeepSnapshot, TakeSnapshot
from fasti.core.replies import Done
from fasti.core.rows.snapshot import Snapshot
from fasti.core.state import ShardState
from fasti.core.work import Work
from fasti.errors import InvalidArgument, Overloaded


class OpenSnapshots(dict[int, Snapshot]):
    """Those of one engine, by number."""

    def __init__(self, state: ShardState) -> None:
        super().__init__()
        self._state = state
        self._next_number = 1
        # The broker's clock less its tick, as of the last step.
        self.ahead_us = 0

    def take(self, work: Work, command: TakeSnapshot) -> Done:
        """A snapshot for a reader: of the shard, or of one topic, which exists."""
        if command.deadline_us <= work.now_us:
            raise InvalidArgument("the deadline has passed", field="deadline")
        # Those of checkpoints and of single listings are not counted.
        readers = sum(each.deadline_us < FOREVER and not each.topic for each in self.values())
        if not command.topic and readers >= work.limits.snapshots_max:
            raise Overloaded("too many snapshots are open")
        return Done(self.pin(work.now_us, command.deadline_us, command.topic))

    def pin(self, now_us: int, deadline_us: int, topic: str = "") -> Snapshot:
        """The state between two commands (also called by the checkpoint), or that of one topic."""
        state, memory = self._state, self._state.memory
        pinned = [state.by_name[topic]] if topic else list(state.topics.values())
        ledgers = {
            (owner.number, partition.number): partition.ledger.view()
            for owner in pinned
            for partition in owner.partitions.made()
        }
        number = self._next_number
        self._next_number += 1
        self[number] = snapshot = Snapshot(
            number,
            memory.arena,
            ledgers,
            {owner.number: (owner.name, owner.settings) for owner in pinned},
            state.next_frame - 1,
            now_us,
            deadline_us,
            memory.leases.view(self.ahead_us),
            memory.names(),
            topic,
        )
        return snapshot

    def keep(self, work: Work, command: KeepSnapshot) -> Done:
        """Its reader is still there: it gets a later deadline, unless it is gone."""
        snapshot = self.get(command.number)
        if snapshot is not None:
            snapshot.deadline_us = command.deadline_us
        return Done()

    def drop(self, work: Work, command: DropSnapshot) -> Done:
        """Lets one go; the numbers of those that are left."""
        self.release(command.number)
        return Done(list(self))

    def release(self, number: int) -> None:
        """Lets a snapshot go; one that is gone already is fine."""
        snapshot = self.pop(number, None)
        if snapshot is not None:
            snapshot.close()

    def drop_old(self, now_us: int) -> None:
        """Lets go of those whose deadline has passed."""
        for number in [n for n, snapshot in self.items() if snapshot.deadline_us <= now_us]:
            self.release(number)
