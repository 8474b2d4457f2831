"""A partition of a key-value topic: entries are rows of the arena, as messages are.

What a message's due time is, is here the moment at which an entry expires; DUE_MAX_US stands for
never, and such entries take no place in the time index. An entry is found by its key alone.

No version comes twice: a new entry begins above the highest version that was ever removed here
(`floor`), so whoever remembers the version of an entry that was deleted and made again is told of
the conflict. What became of removed entries is not remembered.

Only the sequencer's thread touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns import codes
from fasti.core.columns.hashing import UInt64s
from fasti.core.columns.reductions import highest
from fasti.core.lifecycle import Verb
from fasti.core.rows.arena import Ledger
from fasti.core.rows.location import number_of
from fasti.core.rows.memory import Memory, Outcomes
from fasti.core.timeline.partition import Partition, TimeIndex
from fasti.model import DUE_MAX_US, State

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Forgetful(Outcomes):
    """Remembers nothing: an entry that is gone leaves no trace but its partition's floor."""

    def remember(self, sequences: Int64s, state: int, at_us: int) -> None:
        """Nobody will ask."""

    def take_back(self, count: int) -> None:
        """Nothing was remembered."""


class KvTimes(TimeIndex):
    """Only entries that expire have a place in time."""

    def __init__(
        self,
        memory: Memory,
        place: tuple[int, int],
        ledger: Ledger,
        note: Callable[[int, int, int], None],
    ) -> None:
        super().__init__(memory, place, ledger)
        self._note = note

    def schedule(self, sequences: Int64s, due: Int64s) -> None:
        """Those that expire take their place."""
        expiring = due != DUE_MAX_US
        if expiring.any():
            super().schedule(sequences[expiring], due[expiring])

    def unschedule(self, slots: Int64s, flags: NDArray[np.uint8]) -> None:
        """Those that expire leave it."""
        expiring = self.arena.due.take(slots, mode="clip") != DUE_MAX_US
        if expiring.any():
            super().unschedule(slots[expiring], flags[expiring])

    def count_scheduled(self, due: Int64s) -> None:
        """Entries that were read back, of which those count that expire."""
        super().count_scheduled(due[due != DUE_MAX_US])

    def note_due(self, due_us: int) -> None:
        """From this moment on there may be something to remove."""
        self._note(*self._place, due_us)


class KvPartition(Partition):
    """Entries by key. `note(topic, partition, due_us)` is told when one may expire."""

    def __init__(
        self, memory: Memory, topic: int, number: int, note: Callable[[int, int, int], None]
    ) -> None:
        super().__init__(memory, topic, number)
        self.times = KvTimes(memory, (topic, number), self.ledger, note)
        self.outcomes = Forgetful()
        # The highest version that an entry had when it was removed.
        self.floor = 0
        # The last frame that changed something here.
        self.changed_frame = 0

    # Finding

    def find(self, hashes: UInt64s, now_us: int) -> Found:
        """The entries of these keys."""
        return self.look(self.find_keys(hashes), now_us)

    def look(self, sequences: Int64s, now_us: int) -> Found:
        """The entries of these sequences (0: none)."""
        slots = self.ledger.slots(sequences)
        stored = (self.states(slots) == codes.SCHEDULED) & (sequences > 0)
        due = self.arena.due.take(slots, mode="clip")
        live = stored & (due > now_us)
        versions = self.arena.version.take(slots, mode="clip").astype(np.int64)
        versions[~live] = 0
        return Found(sequences, slots, stored, live, versions, due)

    # Changing

    def create(
        self, due: Int64s, locations: Int64s, owner: int, state: State, **columns: Any
    ) -> Int64s:
        """New entries."""
        self._changed_in(locations)
        return super().create(due, locations, owner, state, **columns)

    def relocate(self, slots: Int64s, locations: Int64s, **values: Any) -> None:
        """New values."""
        self._changed_in(locations)
        super().relocate(slots, locations, **values)

    def remove(self, sequences: Int64s, at_us: int, frame: int) -> None:
        """Entries are gone, and their versions never come again."""
        slots = self.ledger.slots(sequences)
        self._raise_floor(highest(self.arena.version.take(slots, mode="clip")))
        self._set_changed(frame)
        self.finish(sequences, slots, Verb.CANCEL, at_us)

    def _raise_floor(self, version: int) -> None:
        before = self.floor
        if version > before:
            self._memory.undo.note(lambda: setattr(self, "floor", before))
            self.floor = version

    def _changed_in(self, locations: Int64s) -> None:
        self._set_changed(int(number_of(locations[:1])[0]))

    def _set_changed(self, frame: int) -> None:
        before = self.changed_frame
        self._memory.undo.note(lambda: setattr(self, "changed_frame", before))
        self.changed_frame = frame


class Found:
    """What there is of some keys. `stored` entries may have expired; `live` ones have not."""

    __slots__ = ("due", "live", "sequences", "slots", "stored", "versions")

    def __init__(
        self,
        sequences: Int64s,
        slots: Int64s,
        stored: Bools,
        live: Bools,
        versions: Int64s,
        due: Int64s,
    ) -> None:
        self.sequences, self.slots = sequences, slots
        self.stored, self.live = stored, live
        # 0 where nothing lives.
        self.versions, self.due = versions, due
