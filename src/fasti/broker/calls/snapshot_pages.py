"""Rows of a snapshot, read in the thread that wants them: which, where they lie, what they hold.

The engine has no part in it, so a scan of millions of messages holds up nobody's delivery. Filters
that fixed-width columns decide come first, then those that need keys, then contents are gathered,
and of all columns only those that are wanted. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.calls import requests
from fasti.broker.calls.snapshots import Held, gone
from fasti.broker.reading import MOVED
from fasti.core.layout import ShardPlace
from fasti.core.ownership import own_partitions
from fasti.core.rows.arena import STATE_MASK
from fasti.core.rows.scan import Scan
from fasti.core.rows.snapshot import Columns
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, State, TopicSettings

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]
Int64s = NDArray[np.int64]

# What travels at once: enough for a reader to be quick, little enough for anybody's memory.
_PIECE_BYTES = 16 << 20
SPLITS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids behind `after_id`, below `until_id` (None: all from there)."""

    after_id: int = 0
    until_id: int | None = None

    def of(self, partition: int) -> tuple[int, int | None] | None:
        """The sequences of a partition in it: from, and up to but not including; None if none."""
        base, beyond = partition << SEQUENCE_BITS, (partition + 1) << SEQUENCE_BITS
        first = max(self.after_id + 1, base)
        if first >= beyond or (self.until_id is not None and self.until_id <= first):
            return None
        ends_here = self.until_id is not None and self.until_id < beyond
        return first - base, self.until_id - base if ends_here and self.until_id else None


class SnapshotTopic:
    """One topic of a snapshot. Raises `invalid_argument` if it was not there yet."""

    def __init__(self, service: Service, held: Held, topic: str) -> None:
        self._service, self.held = service, held
        self._store = held.shard.store
        found = [number for number, known in held.snapshot.topics.items() if known[0] == topic]
        if not found:
            # Refuses what is no topic at all.
            service.require_topic(topic)
            raise InvalidArgument("the topic is younger than the snapshot", field="snapshot")
        self.number = found[0]
        self.settings: TopicSettings = held.snapshot.topics[self.number][1]

    def splits(self, count: int, partitions: Sequence[int]) -> list[IdRange]:
        """Ranges of ids that hold about as many messages each; together they hold all."""
        if not partitions:
            return []
        firsts: list[int] = []
        weights: list[int] = []
        for partition in partitions:
            scan = Scan(self.held.snapshot, self.number, partition, 0, None)
            for sequence, weight in scan.weights():
                firsts.append(sequence | partition << SEQUENCE_BITS)
                weights.append(weight)
        begin, end = partitions[0] << SEQUENCE_BITS, self._end(partitions[-1])
        if len(firsts) < 2 or count < 2:
            return [IdRange(begin, end)]
        before = np.cumsum(weights) - weights
        wanted = np.arange(1, count) * int(np.sum(weights)) / count
        places = np.unique(np.searchsorted(before, wanted))
        cuts = [firsts[place] for place in places.tolist() if 0 < place < len(firsts)]
        edges = [begin, *(cut - 1 for cut in cuts)]
        return [IdRange(after, until) for after, until in zip(edges, [*cuts, end], strict=True)]

    def _end(self, partition: int) -> int | None:
        """Behind the partition's ids; behind the last there is nothing."""
        if partition + 1 == self.settings.partitions:
            return None
        return (partition + 1) << SEQUENCE_BITS

    def parts(self, wanted: IdRange, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:
        """Rows of the range as fixed-width columns, a partition after the other."""
        partitions = [
            number for topic, number in self.held.snapshot.ledgers if topic == self.number
        ]
        for partition in sorted(partitions):
            span = wanted.of(partition)
            if span is None:
                continue
            for columns in Scan(self.held.snapshot, self.number, partition, *span).parts(names):
                if self._service.stopping:
                    raise self._service.unavailable()
                self._service.snapshots.used(self.held)
                yield partition, columns

    def gather(self, locations: Int64s, names: tuple[str, ...]) -> pa.RecordBatch:
        """Contents at these places, which a snapshot keeps. What can't be read is null."""
        try:
            return self._store.payloads.gather(locations, names=names, lost=True)
        except MOVED:
            raise gone(self.held.snapshot.number) from None

    def pieces(self, columns: Columns, rest: bool) -> Iterator[Columns]:
        """Rows that travel together. `rest`: whether contents are gathered for them."""
        if not rest:
            yield columns
            return
        locations, begin = columns["location"], 0
        while begin < len(locations):
            try:
                count = self._store.payloads.fitting(locations[begin:], _PIECE_BYTES)
            except MOVED:
                raise gone(self.held.snapshot.number) from None
            if count == len(locations):
                yield columns
                return
            yield {name: values[begin : begin + count] for name, values in columns.items()}
            begin += count

    def with_keys(self, columns: Columns, wanted: pa.Array) -> Columns:
        """Of these rows those with one of the keys."""
        keys = self.gather(columns["location"], ("key",)).column("key")
        return only(columns, pc.is_in(keys, value_set=wanted).to_numpy(zero_copy_only=False))

    def with_prefix(self, columns: Columns, prefix: str) -> Columns:
        """Of these rows those whose key begins so."""
        keys = self.gather(columns["location"], ("key",)).column("key")
        return only(columns, begins_with(keys, prefix))


def begins_with(keys: pa.Array, prefix: str) -> NDArray[np.bool_]:
    """Of each key whether it begins so; a message without a key has none."""
    found = pc.starts_with(keys, pattern=prefix).fill_null(False)
    begins: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return begins


def by_place(columns: Columns) -> Columns:
    """In the order in which contents lie, so that each block is read once."""
    locations = columns["location"]
    if (locations[1:] >= locations[:-1]).all():
        return columns
    order = np.argsort(locations)
    return {name: values[order] for name, values in columns.items()}


def only(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    """Some of the rows."""
    if keep.all():
        return columns
    return {name: values[keep] for name, values in columns.items()}


def is_there(columns: Columns) -> NDArray[np.bool_]:
    """Staged rows are invisible."""
    states = columns["flags"] & STATE_MASK
    visible: NDArray[np.bool_] = states != State.STAGED
    return visible


def split_ranges(topic: SnapshotTopic, count: int, partitions: Sequence[int]) -> list[Header]:
    """The fields of tickets that share a read. Raises `invalid_argument`."""
    if not 1 <= count <= SPLITS_MAX:
        raise InvalidArgument(f"splits must be 1 to {SPLITS_MAX}", field="splits", limit=SPLITS_MAX)
    return [
        {"after_id": each.after_id, "until_id": each.until_id}
        for each in topic.splits(count, partitions)
    ]


def checked_partitions(fields: Header, settings: TopicSettings, place: ShardPlace) -> list[int]:
    """The partitions that are meant: one, or all that the shard has.

    Raises `invalid_argument`, or `wrong_shard` if the one is another shard's.
    """
    partition = requests.integer(fields, "partition")
    own = own_partitions(settings, place) if place.count > 1 else None
    if partition is None:
        return list(range(settings.partitions)) if own is None else own.numbers
    if not 0 <= partition < settings.partitions:
        raise InvalidArgument("there is no such partition", field="partition")
    if own is not None:
        own.check_numbers(fields["topic"], np.array([partition]))
    return [partition]
