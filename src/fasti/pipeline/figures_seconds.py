"""The figures of a young lake by the second, where gold's minutes would be a point or two.

Read from bronze and silver without Spark, and only if that is cheap: a lake of at most twenty minutes
and `ROWS_MAX` rows. What is counted means what it means in gold (`gold.throughput`, `gold.lateness`), so
seconds add up to its minutes. `due` is only here: messages by the moment from which they could be
delivered, be they delivered or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from fasti.model import MINUTE_US, SECOND_US
from fasti.pipeline import silver
from fasti.pipeline.files import DataFile
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState
from fasti.pipeline.tables import Table

YOUNG_US = 20 * MINUTE_US
ROWS_MAX = 2_000_000
# Lengths of a bucket, and how many of them a chart has at most.
_BUCKETS_S = (1, 2, 5, 10)
_BUCKETS_MAX = 120
_OPS = {
    "messages_out": ("acked",),
    "failed": ("nacked", "expired", "rejected", "exhausted"),
    "dead": ("rejected", "exhausted", "lapsed"),
    "cancelled": ("cancelled",),
}
_ALL_OPS = (*silver.OPS, "appended")
# As gold has them, in thousandths.
_SHARES = {"p50_us": 500, "p95_us": 950, "p99_us": 990, "p999_us": 999}
_SILENCES_MAX = 3
_SILENT_US, _WAITED_US = SECOND_US // 2, SECOND_US // 5
# With more powers of ten, bars of the spread are wider.
_TENS_MANY = 4

Row = dict[str, Any]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Bar:
    """How many messages were later than one length of time, up to another."""

    above_us: float
    up_to_us: float
    count: int


@dataclass(frozen=True)
class Silence:
    """A time in which nothing happened at all, though messages fell due in it."""

    begin_us: int
    end_us: int
    due: int


@dataclass(frozen=True)
class Seconds:
    """Buckets in order of time, without a hole."""

    length_us: int
    lateness: list[tuple[int, Row]]
    throughput: list[tuple[int, Row]]
    # Acks of each topic, by the bucket.
    recent: dict[str, list[int]]
    # Of all messages that are done, as one row of gold's `lateness`; None if there are none.
    whole: Row | None
    spread: list[Bar]
    # The longest first; and the lateness of what didn't fall due in them.
    silences: list[Silence]
    otherwise: Row | None


def seconds(lake: Lake, state: LakeState, first_us: int) -> Seconds | None:
    """None if the lake is too old or too large for it, or if gold isn't as far as silver.

    `first_us` is the beginning of the first minute in which anything happened.
    """
    if state.as_of_us - first_us > YOUNG_US or not lake.bronze.exists():
        return None
    if any(lake.messages.position(f"bronze:{s}") != place for s, place in state.gold.items()):
        return None
    if not 0 < lake.bronze.rows() + lake.messages.rows() <= ROWS_MAX:
        return None
    happened = _transitions(lake, state)
    messages = _messages(lake)
    at_us = _micros(happened.column("at"))
    if not len(at_us):
        return None
    made = _Buckets.over(int(at_us.min()), int(at_us.max()))
    lateness = _Lateness(messages)
    silences = _silences(at_us, _fell_due(messages))
    return Seconds(
        made.length_us,
        lateness.over(made),
        _throughput(made, happened, at_us, messages),
        _recent(made, happened, at_us),
        lateness.whole(),
        lateness.spread(),
        silences,
        lateness.without(silences) if silences else None,
    )


@dataclass(frozen=True)
class _Buckets:
    begin_us: int
    length_us: int
    count: int

    @classmethod
    def over(cls, begin_us: int, end_us: int) -> _Buckets:
        span_s = (end_us - begin_us) / SECOND_US
        length_s = next((s for s in _BUCKETS_S if span_s / s < _BUCKETS_MAX), _BUCKETS_S[-1])
        length_us = length_s * SECOND_US
        start_us = begin_us // length_us * length_us
        return cls(start_us, length_us, (end_us - start_us) // length_us + 1)

    @property
    def starts_us(self) -> list[int]:
        return [self.begin_us + place * self.length_us for place in range(self.count)]

    def place(self, at_us: Ints) -> Ints:
        return (at_us - self.begin_us) // self.length_us

    def counted(self, at_us: Ints) -> Ints:
        """How many lie in each; what lies outside doesn't count."""
        places = self.place(at_us)
        inside = (places >= 0) & (places < self.count)
        return np.bincount(places[inside], minlength=self.count)


def _read(table: Table, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    """Some columns of some files; words that come often are read as a dictionary."""
    words = [name for name in ("op", "topic", "state", "shard") if name in columns]
    options = ds.ParquetReadOptions(dictionary_columns=words)
    paths = [str(table.path / file.path) for file in files]
    dataset = ds.dataset(paths, format=ds.ParquetFileFormat(read_options=options))
    return dataset.to_table(columns=list(columns))


def _transitions(lake: Lake, state: LakeState) -> pa.Table:
    """What happened to messages, as far as gold has counted it: bronze may be ahead."""
    rows = _read(lake.bronze, lake.bronze.files(), ("shard", "position", "at", "op", "topic"))
    known = np.zeros(rows.num_rows, dtype=bool)
    positions = rows.column("position").to_numpy()
    for shard, place in state.gold.items():
        known |= _any_of(rows.column("shard"), (shard,)) & (positions <= place)
    return rows.filter(pa.array(known & _any_of(rows.column("op"), _ALL_OPS)))


def _messages(lake: Lake) -> pa.Table:
    """One row of each message."""
    files = lake.messages.files()
    columns = ["state", "produced_at", "due_last", "started_at", "started_due"]
    columns += ["lateness_us", "early"]
    if not files:
        # As of a lake that has logs alone.
        return silver.PARTS.empty_table().select(columns)
    return _read(lake.messages, files, columns)


def _mask(values: pa.ChunkedArray) -> Mask:
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def _micros(moments: pa.ChunkedArray) -> Ints:
    """Moments as numbers; the smallest number there is where there is none."""
    numbers = pc.fill_null(moments.cast(pa.int64()), np.iinfo(np.int64).min // 4)
    micros: Ints = numbers.to_numpy(zero_copy_only=False)
    return micros


def _any_of(values: pa.ChunkedArray, words: Sequence[str]) -> Mask:
    return _mask(pc.is_in(values, pa.array(words, pa.string())))


def _fell_due(messages: pa.Table) -> Ints:
    """From when each message could be delivered: all that weren't taken back."""
    wanted = ~_any_of(messages.column("state"), ("staged", "cancelled", "purged"))
    due_us = _micros(pc.coalesce(messages.column("started_due"), messages.column("due_last")))
    return np.maximum(due_us, _micros(messages.column("produced_at")))[wanted]


def _silences(at_us: Ints, due_us: Ints) -> list[Silence]:
    """Times of half a second and more without a transition, with messages that waited in them."""
    moments, due_us = np.sort(at_us), np.sort(due_us)
    gaps = np.flatnonzero(np.diff(moments) >= _SILENT_US)
    # Many of them are how slow consumers work, and nothing to report.
    if len(gaps) > _SILENCES_MAX:
        return []
    silences = []
    for place in gaps:
        begin_us, end_us = int(moments[place]), int(moments[place + 1])
        # What ended it may be a message that fell due just then: that one didn't wait.
        waited = np.searchsorted(due_us, (begin_us, end_us - _WAITED_US))
        if waited[1] > waited[0]:
            due = int(np.searchsorted(due_us, end_us) - waited[0])
            silences.append(Silence(begin_us, end_us, due))
    return sorted(silences, key=lambda silence: silence.begin_us - silence.end_us)


def _throughput(
    made: _Buckets, happened: pa.Table, at_us: Ints, messages: pa.Table
) -> list[tuple[int, Row]]:
    op = happened.column("op")
    counts = {name: made.counted(at_us[_any_of(op, words)]) for name, words in _OPS.items()}
    state = messages.column("state")
    produced_us = _micros(messages.column("produced_at"))
    born = made.counted(produced_us[~_any_of(state, ("staged",))])
    counts["messages_in"] = born + made.counted(at_us[_any_of(op, ("appended",))])
    counts["due"] = made.counted(_fell_due(messages))
    rows = [
        {name: int(values[place]) for name, values in counts.items()} for place in range(made.count)
    ]
    return list(zip(made.starts_us, rows, strict=True))


def _recent(made: _Buckets, happened: pa.Table, at_us: Ints) -> dict[str, list[int]]:
    acked = _any_of(happened.column("op"), ("acked",))
    topics = happened.column("topic").filter(pa.array(acked)).cast(pa.string())
    codes = topics.combine_chunks().dictionary_encode()
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    cells = numbers * made.count + made.place(at_us[acked])
    table = np.bincount(cells[numbers >= 0], minlength=len(names) * made.count)
    return dict(zip(names, table.reshape(-1, made.count).tolist(), strict=True))


class _Lateness:
    """Of messages that are done, sorted by how late they were."""

    def __init__(self, messages: pa.Table) -> None:
        done = _any_of(messages.column("state"), ("done",))
        done &= _mask(pc.is_valid(messages.column("started_at")))
        done &= _mask(pc.is_valid(messages.column("lateness_us")))
        rows = messages.filter(pa.array(done)).sort_by("lateness_us")
        self._late_us: Ints = rows.column("lateness_us").to_numpy()
        self._at_us = _micros(rows.column("started_at"))
        self._due_us = np.maximum(
            _micros(rows.column("started_due")), _micros(rows.column("produced_at"))
        )
        self._early: Ints = pc.fill_null(rows.column("early"), 0).to_numpy()

    def whole(self) -> Row | None:
        return _row(self._late_us, self._early) if len(self._late_us) else None

    def without(self, silences: Sequence[Silence]) -> Row | None:
        """Of what fell due at other times."""
        other = np.ones(len(self._due_us), dtype=bool)
        for silence in silences:
            other &= (self._due_us < silence.begin_us) | (self._due_us >= silence.end_us)
        return _row(self._late_us[other], self._early[other]) if other.any() else None

    def over(self, made: _Buckets) -> list[tuple[int, Row]]:
        """The buckets in which user code got any."""
        places = made.place(self._at_us)
        order = np.argsort(places, kind="stable")
        places, late_us, early = places[order], self._late_us[order], self._early[order]
        rows = []
        for place, start_us in enumerate(made.starts_us):
            low, high = np.searchsorted(places, (place, place + 1))
            if low < high:
                rows.append((start_us, _row(late_us[low:high], early[low:high])))
        return rows

    def spread(self) -> list[Bar]:
        """Ten bars for each power of ten, or five: neighbours of each other on a logarithmic scale."""
        if not len(self._late_us):
            return []
        tens = np.log10(np.maximum(self._late_us, 1))
        per_ten = 10 if tens[-1] - tens[0] < _TENS_MANY else 5
        # A value on an edge belongs below it, as in "up to 1 ms".
        places = np.maximum(np.ceil(np.round(tens * per_ten, 9)).astype(np.int64), 1)
        low = int(places[0])
        counts = np.bincount(places - low)
        return [
            Bar(_edge(low + n - 1, per_ten), _edge(low + n, per_ten), int(count))
            for n, count in enumerate(counts)
        ]


def _edge(place: int, per_ten: int) -> float:
    return float(math.pow(10, place / per_ten))


def _row(late_us: Ints, early: Ints) -> Row:
    """Of sorted values. Percentiles by nearest rank."""
    count = len(late_us)
    ranks = {name: -(-count * share // 1000) for name, share in _SHARES.items()}
    return {
        "count": count,
        **{name: int(late_us[rank - 1]) for name, rank in ranks.items()},
        "max_us": int(late_us[-1]),
        "early": int(early.sum()),
    }
