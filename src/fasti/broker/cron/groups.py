"""Schedules that happen together: which occurrences of them are to be emitted now.

A group is of one cron topic, one timing, one target and one set of policies, so that an occurrence
is the same for all its members. Those that share a timing share its `Occurrences`: a next occurrence
is worked out once for all of them.

Members may stand at different occurrences (one came later, one was changed): the group goes on from
the one that is furthest behind, and each occurrence is for the members that have not had it.

One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from fasti.broker.cron.emission import CHUNK_ROWS, Chunk, Member
from fasti.broker.cron.occurrences import Occurrences, Timing
from fasti.core.cron.schedule import Schedule
from fasti.model import DUE_MAX_US, SECOND_US

# Messages that may overlap are emitted so long before they are due.
AHEAD_US = 10 * SECOND_US


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What the members of a group have in common."""

    topic: str
    target: str
    timing: Timing
    start_us: int
    end_us: int
    ahead_us: int
    misfire: str
    misfire_max: int
    grace_us: int

    @classmethod
    def of(cls, topic: str, schedule: Schedule) -> GroupKey:
        """Of a schedule."""
        return cls(
            topic,
            schedule.target,
            Timing.of(schedule),
            schedule.start_us,
            schedule.end_us or DUE_MAX_US,
            AHEAD_US if schedule.overlap == "allow" else 0,
            schedule.misfire,
            schedule.misfire_max,
            schedule.misfire_grace_us,
        )


@dataclass(slots=True)
class Due:
    """An occurrence that is to be emitted now, or passed over."""

    at_us: int
    emitted: bool = True
    missed: bool = False


class Group:
    """The members, in chunks, and where they stand."""

    def __init__(self, key: GroupKey, occurrences: Occurrences) -> None:
        self.key, self.occurrences = key, occurrences
        self.chunks: list[Chunk] = []
        self._where: dict[int, Chunk] = {}
        # No member is behind this; until it is looked at, some may be further.
        self._floor_us = DUE_MAX_US
        # Not before this, after something went wrong.
        self.not_before_us = 0

    def __len__(self) -> int:
        return len(self._where)

    def add(self, member: Member) -> None:
        if not self.chunks or len(self.chunks[-1]) >= CHUNK_ROWS:
            self.chunks.append(Chunk())
        chunk = self.chunks[-1]
        chunk.add(member)
        self._floor_us = min(self._floor_us, member.last_us)
        self._where[member.number] = chunk

    def remove(self, number: int) -> None:
        chunk = self._where.pop(number)
        chunk.remove(number)
        if not len(chunk):
            self.chunks.remove(chunk)

    def last_us(self) -> int:
        """The occurrence of the member that is furthest behind."""
        for chunk in self.chunks:
            chunk.build()
        self._floor_us = min(int(chunk.last_us.min()) for chunk in self.chunks)
        return self._floor_us

    def next_us(self) -> int | None:
        """The next occurrence that some member has not had; None if there is none any more."""
        return self._after(self.last_us())

    def _after(self, us: int) -> int | None:
        at_us = self.occurrences.first_after(max(us, self.key.start_us - 1))
        return None if at_us is None or at_us > self.key.end_us else at_us

    def acts_us(self) -> int | None:
        """When something is to be done next, or looked at: columns are not made for this."""
        at_us = self._after(self._floor_us)
        return None if at_us is None else max(at_us - self.key.ahead_us, self.not_before_us)

    def due(self, now_us: int) -> Iterator[Due]:
        """What is to be emitted now, in order. The caller has emitted one before it asks for the next."""
        while (at_us := self.next_us()) is not None and at_us <= now_us + self.key.ahead_us:
            if at_us < now_us - self.key.grace_us:
                yield from self._missed(now_us - self.key.grace_us - 1)
            else:
                yield Due(at_us)

    def _missed(self, until_us: int) -> list[Due]:
        """What becomes of those that no broker was there for: by the misfire policy."""
        begin_us = max(self.last_us(), self.key.start_us - 1)
        latest = self.occurrences.until(min(until_us, self.key.end_us))
        wanted = self.key.misfire_max if self.key.misfire == "all" else 1
        missed = list(takewhile(lambda at_us: at_us > begin_us, islice(latest, wanted)))
        emitted = self.key.misfire != "skip"
        return [Due(at_us, emitted, missed=True) for at_us in reversed(missed)]


def waiting_for(chunk: Chunk, at_us: int) -> np.ndarray[tuple[int], np.dtype[np.intp]] | None:
    """Which members have not had an occurrence; None if it is all of them."""
    waiting = chunk.last_us < at_us
    return None if waiting.all() else np.flatnonzero(waiting)
