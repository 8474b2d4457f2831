"""An engine that only follows learns where a leader's checkpoint has put things.

The leader's own engine is told by those who wrote the checkpoint (`core/checkpoint.py`): each row with its
old place and its new one, in the epoch that the checkpoint closed at its position. One that follows has
applied more by the time that it hears of a manifest, and closed no epoch there. So:

- A row moves to its new place if the place that it has is out of force: in a frame up to the manifest's
  position, or in a block that is not named any more. Any other place is newer than the manifest.
- Epochs that reach beyond the manifest's position are *doubtful*: a row that changed in one of them may be
  younger than the manifest, and an entry in the time index as well. They are kept as if they were: the next
  checkpoint that this engine makes, should it lead, writes these rows again.
- A row of which the block says another owner's or reason's number than this engine has for it is a *stray*:
  numbers are given in memory, and commands that were taken back may have used some up in the leader. A
  stray is what memory says once it was written again; who leads has to see to that.

The thread that has the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.engine import Engine
from fasti.core.rows.arena import CHANGED, STATE_MASK
from fasti.core.state import ShardState
from fasti.model import State

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Columns = dict[str, NDArray[Any]]

_NONE = np.zeros(0, dtype=np.int64)
# Partitions that are told of a manifest at a time.
_PARTITIONS = 256


def install_rows(
    engine: Engine,
    place: tuple[int, int],
    columns: Columns,
    is_over: Callable[[Int64s], Bools],
    doubtful: NDArray[np.uint8],
    delta: bool,
) -> Int64s:
    """Rows of one partition in a new block: those that are here move there. The sequences of strays.

    `is_over` tells which places are out of force, `doubtful` are epochs as rows keep them. The rows of a
    `delta` have their payloads elsewhere. Raises AssertionError if a row that has not changed since is not
    what the block says.
    """
    memory, places = engine.memory, columns["location"]
    partition = engine.slices.find(*place)
    if partition is None:
        if not delta:
            memory.marks.kill(places)
        return _NONE
    arena = memory.arena
    slots = partition.ledger.slots(columns["sequence"])
    before = arena.location.take(slots)
    here = partition.states(slots) != State.NONE
    here &= before == places if delta else is_over(before)
    sure = here & ~np.isin(arena.epoch.take(slots), doubtful)
    if not delta:
        moved = slots[here]
        arena.before_write(moved)
        arena.location[moved] = places[here]
        arena.flags[slots[sure]] &= ~CHANGED
        memory.marks.kill(places[~here])
    return _find_strays(engine, slots[sure], {name: part[sure] for name, part in columns.items()})


def _find_strays(engine: Engine, slots: Int64s, columns: Columns) -> Int64s:
    arena = engine.memory.arena
    states = arena.flags.take(slots) & STATE_MASK
    assert (states == columns["state"]).all(), "a row has another state than its block says"
    assert (arena.due.take(slots) == columns["due"]).all(), "a row is due at another time"
    assert (arena.version.take(slots) == columns["version"]).all(), "a row has another version"
    # A lease's slot stands where the reason does, and is not stored.
    stray = (arena.lease.take(slots) != columns["lease"]) & (states != State.LEASED)
    stray |= arena.owner.take(slots) != columns["owner"]
    found: Int64s = columns["sequence"][stray]
    return found


def live_rows(engine: Engine, place: tuple[int, int], sequences: Int64s) -> Int64s:
    """Of these rows those that are not finished."""
    partition = engine.slices.find(*place)
    if partition is None:
        return _NONE
    return sequences[partition.states(partition.ledger.slots(sequences)) != State.NONE]


def touch_rows(engine: Engine, place: tuple[int, int], sequences: Int64s) -> None:
    """The next checkpoint writes these rows, as far as they live, though nothing changes in them."""
    partition = engine.slices.find(*place)
    if partition is None:
        return
    arena = engine.memory.arena
    slots = partition.ledger.slots(sequences)
    slots = slots[partition.states(slots) != State.NONE]
    arena.before_write(slots)
    arena.flags[slots] |= CHANGED
    arena.epoch[slots] = engine.memory.epoch_byte


def finish_install(
    engine: Engine, version: int, blocks: frozenset[int], checkpoint: int, written: int
) -> Iterator[None]:
    """A manifest is in force here, with these runs. Entries of epochs up to `written` are in them.

    A new epoch begins. In pieces: between them the engine must not be used.
    """
    state, memory = engine.state, engine.memory
    for number in set(memory.marks.blocks()) - blocks:
        memory.marks.remove_block(number)
    memory.epoch = checkpoint + 1
    # What retention dropped since is given back with the next one.
    memory.trimmed_bytes = 0
    engine.slices.version = version
    for number, partition in enumerate(_partitions(state)):
        times = partition.times
        times.calendar.forget(written, 0)
        times.calendar.generation = memory.epoch
        # As after an opening: what runs hold is read back when this engine starts.
        times.loading, times.loaded_until_us = False, 0
        if number % _PARTITIONS == _PARTITIONS - 1:
            yield


def _partitions(state: ShardState) -> Iterator[Any]:
    for topic in list(state.topics.values()):
        yield from list(topic.partitions.made())


def epoch_bytes(epochs: Iterable[int]) -> NDArray[np.uint8]:
    """Epochs as rows keep them."""
    return np.array([epoch & 0xFF for epoch in epochs], dtype=np.uint8)
