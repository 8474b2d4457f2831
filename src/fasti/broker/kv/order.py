"""The keys of a key-value topic in order, for scans: kept by the broker, not by the engine.

An order is built when somebody scans a topic for the first time, from a snapshot, which reads every
key once (seconds for a million). From then on the topic's ring tells of new entries, before
whoever made them is answered, so a scan sees every put that was acknowledged when it began. A
topic that nobody scans costs nothing; one that is scanned costs about 40 bytes a key and the key.

Keys stand in sorted runs, of which each is at most a quarter of the one before it: a scan merges
what is new into a run, runs that have grown alike into one, and reads a page from each. An entry
that is gone leaves its key behind until runs are merged; whoever reads a page asks the engine
which of its ids are alive. Of a key that was made again the youngest entry counts.

Any thread may scan; `_hear` is called by the committer's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.calls.snapshots import drop_snapshot
from fasti.broker.kv.rings import Moment, Ring
from fasti.core.commands import TakeSnapshot
from fasti.core.kv.events import KvProduced
from fasti.core.rows.arena import STATE_MASK
from fasti.model import MINUTE_US, SEQUENCE_BITS, SEQUENCE_MASK, State

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.core.rows.snapshot import Snapshot

Int64s = NDArray[np.int64]
Alive = Callable[[Int64s], NDArray[np.bool_]]

_GROWTH = 4
_GATHERED_ROWS = 65_536
_SNAPSHOT_US = 10 * MINUTE_US
# Smaller runs are merged without asking what of them is alive.
_ASKED_MIN = 4_096
# What may gather while nobody scans, before the order is let go and built anew by the next scan.
_PENDING_MIN = 1 << 20
_NO_KEYS = pa.array([], pa.large_binary())


class Run:
    """Sorted keys, each once, and the id of the youngest entry of each. Never changed."""

    __slots__ = ("ids", "keys")

    def __init__(self, keys: pa.Array, ids: Int64s) -> None:
        self.keys, self.ids = keys, ids

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, key: bytes, after: bool = False) -> int:
        """The place of the first key that is not below (`after`: that is above)."""
        low, high = 0, len(self.ids)
        while low < high:
            middle = (low + high) // 2
            found = self.keys[middle].as_py()
            if found < key or (after and found == key):
                low = middle + 1
            else:
                high = middle
        return low


def make_run(keys: pa.Array, ids: Int64s) -> Run:
    """From keys in any order, older entries first."""
    order = pc.array_sort_indices(keys)
    keys, ids = keys.take(order), ids[order.to_numpy()]
    if len(keys) > 1:
        same = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        last = np.append(~same.to_numpy(zero_copy_only=False), True)
        if not last.all():
            keys, ids = keys.filter(pa.array(last)), ids[last]
    return Run(keys, ids)


class KeyOrder:
    """The keys of one topic in order."""

    def __init__(self, service: Service, topic: str, number: int) -> None:
        self.number = number
        self._topic, self._shard = topic, service.placement.shard_of(topic)
        self._ring: Ring = self._shard.feed.rings.open(number)
        # One settles at a time; and for what the committer's thread shares.
        self._settling = threading.Lock()
        self._lock = threading.Lock()
        self._runs: list[Run] | None = None
        self._pending: list[tuple[pa.Array, Int64s]] = []
        self._pending_rows = 0
        self._ring.listen(self._hear)

    def close(self) -> None:
        """Nobody will scan any more."""
        self._ring.unlisten(self._hear)
        self._shard.feed.rings.close(self._ring)

    # The committer's thread

    def _hear(self, moment: Moment | None) -> None:
        with self._lock:
            if moment is None:
                self._let_go()
            if moment is None or self._runs is None:
                return
            for event, batch in moment.happened:
                if isinstance(event, KvProduced):
                    # Copied: the column shares its memory with the values.
                    keys = batch.column("key").take(pa.array(event.row)).cast(pa.large_binary())
                    first = event.first_sequence
                    sequences = np.arange(first, first + len(keys), dtype=np.int64)
                    self._pending.append((keys, sequences | event.partition << SEQUENCE_BITS))
                    self._pending_rows += len(keys)
            known = sum(len(run) for run in self._runs)
            if self._pending_rows > max(_PENDING_MIN, 2 * known):
                self._let_go()

    def _let_go(self) -> None:
        self._runs = None
        self._pending, self._pending_rows = [], 0

    # Any thread

    def runs(self, alive: Alive) -> list[Run]:
        """All keys that were acknowledged, in runs. `alive` tells which ids still are."""
        with self._settling:
            while True:
                with self._lock:
                    runs, pending = self._runs, self._pending
                    if runs is not None:
                        self._pending, self._pending_rows = [], 0
                if runs is None:
                    self._build()
                    continue
                try:
                    runs = merged([*runs, *_as_run(pending)], alive)
                except BaseException:
                    with self._lock:
                        self._let_go()
                    raise
                with self._lock:
                    if self._runs is not None:
                        self._runs = runs
                        return runs

    def _build(self) -> None:
        """Reads all keys of a snapshot; what came since it was taken is pending."""
        with self._lock:
            self._let_go()
            # From here on what is heard counts, unless the shard recovers meanwhile.
            self._runs = []
        try:
            run, seen = self._read_snapshot()
        except BaseException:
            with self._lock:
                self._let_go()
            raise
        with self._lock:
            if self._runs is None:
                return  # The shard has recovered: once more.
            self._runs = [run] if len(run) else []
            self._pending = [_younger(*piece, seen) for piece in self._pending]

    def _read_snapshot(self) -> tuple[Run, dict[int, int]]:
        """All keys as they are now, and up to which sequence of each partition."""
        deadline_us = self._shard.clock.now_us() + _SNAPSHOT_US
        taken = self._shard.call(TakeSnapshot(deadline_us))
        if taken.error is not None:
            raise taken.error
        snapshot: Snapshot = taken.value
        try:
            keys, ids = self._read(snapshot)
        finally:
            drop_snapshot(self._shard, snapshot)
        seen = {
            number: view.next_sequence
            for (topic, number), view in snapshot.ledgers.items()
            if topic == self.number
        }
        return make_run(keys, ids), seen

    def _read(self, snapshot: Snapshot) -> tuple[pa.Array, Int64s]:
        """Keys and ids of all entries that there were."""
        ids: list[Int64s] = [np.zeros(0, dtype=np.int64)]
        places: list[Int64s] = [np.zeros(0, dtype=np.int64)]
        for topic, number in snapshot.ledgers:
            if topic == self.number:
                for columns in snapshot.rows(topic, number, last=True):
                    stored = columns["flags"] & STATE_MASK == State.SCHEDULED
                    ids.append(columns["sequence"][stored] | number << SEQUENCE_BITS)
                    places.append(columns["location"][stored])
        locations = np.concatenate(places)
        payloads = self._shard.store.payloads
        keys: list[pa.Array] = [_NO_KEYS]
        for begin in range(0, len(locations), _GATHERED_ROWS):
            some = locations[begin : begin + _GATHERED_ROWS]
            found = payloads.gather(some, names=("key",), lost=True).column("key")
            keys.append(found.cast(pa.large_binary()))
        whole, numbers = pa.concat_arrays(keys), np.concatenate(ids)
        if whole.null_count:
            # An entry whose key can't be read has no place in the order.
            here = whole.is_valid()
            whole = whole.filter(here)
            numbers = numbers[here.to_numpy(zero_copy_only=False)]
        return whole, numbers


def _as_run(pending: list[tuple[pa.Array, Int64s]]) -> list[Run]:
    if not pending:
        return []
    keys = pa.concat_arrays([keys for keys, _ in pending])
    return [make_run(keys, np.concatenate([ids for _, ids in pending]))]


def _younger(keys: pa.Array, ids: Int64s, seen: dict[int, int]) -> tuple[pa.Array, Int64s]:
    """Entries that the snapshot had not seen."""
    ends = np.array([seen.get(int(number), 0) for number in ids >> SEQUENCE_BITS], dtype=np.int64)
    new = ids & SEQUENCE_MASK >= ends
    return keys.filter(pa.array(new)), ids[new]


def merged(runs: list[Run], alive: Alive) -> list[Run]:
    """Runs that have grown alike become one, without the keys whose entries are gone."""
    runs = [run for run in runs if len(run)]
    while len(runs) > 1 and len(runs[-2]) < _GROWTH * len(runs[-1]):
        newer, older = runs.pop(), runs.pop()
        keys = pa.concat_arrays([older.keys, newer.keys])
        run = make_run(keys, np.concatenate([older.ids, newer.ids]))
        if len(run) >= _ASKED_MIN:
            kept = alive(run.ids)
            if not kept.all():
                run = Run(run.keys.filter(pa.array(kept)), run.ids[kept])
        runs.append(run)
    return runs


def page(
    runs: list[Run], low: bytes, after: bool, high: bytes | None, count: int
) -> tuple[pa.Array, Int64s]:
    """The next keys from `low` on (`after` it) and below `high`: about `count`, in order."""
    pieces: list[tuple[pa.Array, Int64s]] = []
    cut: bytes | None = None
    for run in runs:
        begin = run.find(low, after)
        end = len(run) if high is None else run.find(high)
        until = min(end, begin + count)
        if until <= begin:
            continue
        pieces.append((run.keys.slice(begin, until - begin), run.ids[begin:until]))
        if until < end:
            last = run.keys[until - 1].as_py()
            cut = last if cut is None else min(cut, last)
    if not pieces:
        return _NO_KEYS, np.zeros(0, dtype=np.int64)
    if len(pieces) == 1:
        return pieces[0]
    joined = make_run(
        pa.concat_arrays([keys for keys, _ in pieces]), np.concatenate([ids for _, ids in pieces])
    )
    if cut is None:
        return joined.keys, joined.ids
    # Beyond the last key of a run that has more, something may be missing.
    end = joined.find(cut, after=True)
    return joined.keys.slice(0, end), joined.ids[:end]
