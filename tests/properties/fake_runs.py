"""A storage that the engine can be driven with: checkpoints, runs and slices, all in memory.

It does what storage promises at the seam and nothing more: at a checkpoint's snapshot the epoch
is closed; rows whose payload lies in the journal are written to a new block, rows of older blocks
that changed in the epoch become deltas; the engine is told row by row and then once for all; and
slices of runs are read back when it asks, late, in pieces, and now and then from runs that have
been replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fasti.core import commands as co
from fasti.core.agenda import FOREVER
from fasti.core.engine import Engine
from fasti.core.replies import LoadSlice
from fasti.core.rows.location import in_block, is_in_run, number_of, row_of
from fasti.core.rows.snapshot import Snapshot

Place = tuple[int, int]
Entries = dict[Place, set[tuple[int, int]]]


@dataclass
class Checkpoint:
    """One in progress: what it wrote, and what the engine has not been told yet."""

    epoch: int
    snapshot: Snapshot
    whole: bool
    untold: list[co.RowsInstalled] = field(default_factory=list)
    entries: Entries = field(default_factory=dict)
    blocks: set[int] = field(default_factory=set)


class FakeRuns:
    """Blocks of payloads by number, and (due, sequence) entries by version and partition."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[bytes]] = {}
        self.versions: dict[int, Entries] = {0: {}}
        self.version = 0
        self.live: set[int] = set()
        self.next_block = 1
        self.open: Checkpoint | None = None
        self.wishes: list[LoadSlice] = []

    def asked(self, wish: LoadSlice) -> None:
        self.wishes.append(wish)

    # Checkpoints

    def begin(self, engine: Engine, now_us: int, whole: bool) -> None:
        """The snapshot, which closes an epoch. `whole`: rewrite everything, as compaction does."""
        epoch = engine.memory.epoch
        self.open = Checkpoint(epoch, engine.snapshots.pin(now_us, FOREVER), whole)
        engine.memory.epoch = epoch + 1
        for topic in engine.state.topics.values():
            for partition in topic.partitions:
                partition.times.calendar.generation = epoch + 1

    def write(self, engine: Engine, payload: Callable[[int], bytes]) -> None:
        """Writes the blocks, some time after the snapshot."""
        work = self.open
        assert work is not None
        for place in work.snapshot.ledgers:
            old = set() if work.whole else self.versions[self.version].get(place, set())
            entries = work.entries.setdefault(place, set(old))
            for columns in work.snapshot.rows(*place):
                journal = ~is_in_run(columns["location"]) | work.whole
                delta = ~journal & (columns["epoch"] == np.uint8(work.epoch & 0xFF))
                for row in np.flatnonzero(journal | delta).tolist():
                    entries.add((int(columns["due"][row]), int(columns["sequence"][row])))
                if journal.any():
                    self._write_block(engine, place, columns, np.flatnonzero(journal), payload)

    def _write_block(
        self,
        engine: Engine,
        place: Place,
        columns: dict[str, Any],
        rows: Any,
        payload: Callable[[int], bytes],
    ) -> None:
        assert self.open is not None
        number, self.next_block = self.next_block, self.next_block + 1
        old = columns["location"][rows]
        self.blocks[number] = [payload(location) for location in old.tolist()]
        engine.memory.marks.add_block(number, len(rows))
        self.open.untold.append(
            co.RowsInstalled(
                *place,
                self.open.epoch,
                columns["sequence"][rows],
                old,
                in_block(number, np.arange(len(rows), dtype=np.int64)),
            )
        )
        self.open.blocks.add(number)

    def finish(self, engine: Engine) -> co.RunsInstalled:
        """The manifest is in force. The caller gives this to the engine."""
        work = self.open
        assert work is not None
        assert not work.untold
        self.live = work.blocks if work.whole else self.live | work.blocks
        self.version += 1
        self.versions[self.version] = work.entries
        first = {p: min(e)[0] if e else FOREVER for p, e in work.entries.items()}
        engine.snapshots.release(work.snapshot.number)
        self.open = None
        return co.RunsInstalled(self.version, work.epoch, first, frozenset(self.live))

    # Slices

    def answer(self, wish: LoadSlice, rows_max: int) -> co.SliceLoaded:
        """The entries that a wish asked for: as many as it wants, or fewer."""
        self.wishes.remove(wish)
        entries = sorted(self.versions[wish.version].get((wish.topic, wish.partition), set()))
        later = [entry for entry in entries if entry[0] >= wish.from_us]
        given = [entry for entry in later if entry[0] < wish.to_us]
        through_us = wish.to_us if len(given) < len(later) else FOREVER
        if len(given) > min(rows_max, wish.count):
            # Equal due times stay together, or nothing would ever come after many of them.
            cut = min(rows_max, wish.count)
            while cut < len(given) and given[cut][0] == given[cut - 1][0]:
                cut += 1
            if cut < len(given):
                through_us = given[cut][0]
            given = given[:cut]
        return co.SliceLoaded(
            wish.topic,
            wish.partition,
            wish.version,
            through_us,
            np.array([sequence for _, sequence in given], dtype=np.int64),
            np.array([due_us for due_us, _ in given], dtype=np.int64),
        )

    # What must hold

    def check_marks(self, engine: Engine) -> None:
        """A row of a block is marked dead exactly if no message lies there.

        While a checkpoint is under way a row may have left its block unmarked: that block will go.
        """
        marks = engine.memory.marks
        used: dict[int, set[int]] = {}
        for topic in engine.state.topics.values():
            for partition in topic.partitions:
                for frame in partition.ledger.frames().tolist():
                    rows = slice(frame << 12, (frame + 1) << 12)
                    at = engine.memory.arena.location[rows][
                        engine.memory.arena.flags[rows] & 7 != 0
                    ]
                    at = at[is_in_run(at)]
                    for number, row in zip(
                        number_of(at).tolist(), row_of(at).tolist(), strict=True
                    ):
                        used.setdefault(number, set()).add(row)
        known = set(marks.blocks())
        assert set(used) <= known, "a message lies in a block that is gone"
        bitmaps = marks.bitmaps()
        untold = {
            int(at)
            for told in (self.open.untold if self.open else ())
            for at in told.new_locations.tolist()
        }
        for number in known:
            size = marks.rows(number)
            bits = np.unpackbits(
                bitmaps.get(number, np.zeros((size + 7) // 8, dtype=np.uint8)), bitorder="little"
            )[:size]
            for row in range(size):
                lies = row in used.get(number, set())
                if int(in_block(number, np.array([row]))[0]) in untold:
                    continue
                assert not (bits[row] and lies), f"block {number}, row {row} is not dead"
                assert bits[row] or lies or self.open, f"block {number}, row {row} is dead"
