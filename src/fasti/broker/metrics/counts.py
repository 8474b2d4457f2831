"""What the broker counts while it works.

The service calls these once per batch, from the threads of its sessions; each call is a few dict
lookups under one lock. Nothing is formatted before a scrape asks: `text` reads the rest from the
shard and writes Prometheus' format (text.py).

The number of series is bounded: the first 1,000 topics that are met have series of their own, all
others share the topic `_other`; and a page has `metrics_series_max` in all (series.py). A topic keeps
its name as long as it exists, so that no counter ever goes back; the place of a deleted one is free
again after the next scrape. The inboxes of callers come and go with their clients, so all of them are
the topic `_inboxes`.

How late messages were started is `started − max(due, created)`. The engine keeps no time of creation,
but the session that joins a delivery with its payloads sees it, so it is noted there (`LatenessBook`)
and looked up when an ack, nack or release says when user code got the message.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fasti.broker.metrics.series import SERIES_MAX, LeftOutNotice
from fasti.core.columns.reductions import some
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard
    from fasti.broker.shares import Shares


class Distribution:
    """How values are distributed: counts up to each bound and beyond the last, and their sum.

    What observes holds a lock or is the only thread that does; readers take copies and may see a sum
    that is one observation behind its counts.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One value. A value that equals a bound counts below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Many values at once."""
        places = np.searchsorted(self.bounds, values, side="left")
        for place, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[place] += count
        self.total += float(values.sum())

    def copy(self) -> Distribution:
        """As it is now."""
        copied = Distribution(self.bounds)
        copied.counts, copied.total = list(self.counts), self.total
        return copied

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of bound and count up to it, ending with `+Inf`: Prometheus' form."""
        sums = np.cumsum(self.counts).tolist()
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, sums, strict=True))


TOPICS_MAX = 1_000
OTHER = "_other"
INBOX, INBOXES = "_inbox.", "_inboxes"
# About as many as a busy topic has.
_SERIES_PER_TOPIC = 50
LATENESS_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0),
)
# Of calls refused, by op, code and caller.
_REFUSALS_MAX = 1_000
_OUTCOMES = len(Outcome)


@dataclass(slots=True)
class TopicCounts:
    """What happened in one topic since the broker started."""

    # By operation: how many rows came out with each outcome.
    mutated: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    delivered: int = 0
    lateness: Distribution = field(default_factory=lambda: Distribution(LATENESS_BOUNDS_S))

    def copy(self) -> TopicCounts:
        """As they are now."""
        mutated = {op: counts.copy() for op, counts in self.mutated.items()}
        return TopicCounts(mutated, self.delivered, self.lateness.copy())


def series_of(topic: str) -> str:
    """The name under which a topic is counted."""
    return INBOXES if topic.startswith(INBOX) else topic


class Metrics:
    """One per broker. All methods, from any thread."""

    def __init__(self, topics_max: int = TOPICS_MAX, series_max: int = SERIES_MAX) -> None:
        self._lock = threading.Lock()
        self.series_max = series_max
        # So that what is counted of each topic fits into the page, and something else does too.
        self._topics_max = max(1, min(topics_max, series_max // _SERIES_PER_TOPIC))
        # Held by the scrape that is under way.
        self.scraping = threading.Lock()
        self.notice = LeftOutNotice()
        self._topics: dict[str, TopicCounts] = {}
        self._other = TopicCounts()
        self._refusals: Counter[tuple[str, str, str]] = Counter()
        self._sessions_opened = 0
        self._sessions_closed = 0
        self._sessions_silent = 0
        # Consumers by topic; as many entries as topics that have some.
        self._consumers: Counter[str] = Counter()
        self._unauthenticated = 0
        self._connections_ended: Counter[str] = Counter()
        self._connections = self._strangers = 0
        self.recovery_seconds = 0.0
        # Set by the service.
        self.shares: Shares | None = None

    # Told by the service

    def of_shard(self, shards: int) -> Metrics:
        """Those of one of so many shards of a process, which share a page. Called when they are opened."""
        return Metrics(series_max=self.series_max // shards)

    def mutated(self, op: str, topic: str, status: NDArray[np.uint8]) -> None:
        """A batch was carried out: one outcome per row."""
        # Nearly always every row is ok, and that is seen ten times faster than counted.
        counts = np.bincount(status, minlength=_OUTCOMES) if some(status) else None
        with self._lock:
            mutated = self._topic(topic).mutated
            if op not in mutated:
                mutated[op] = np.zeros(_OUTCOMES, dtype=np.int64)
            if counts is None:
                mutated[op][Outcome.OK] += len(status)
            else:
                mutated[op] += counts

    def refused(self, op: str, code: str, caller: str) -> None:
        """A command was refused as a whole. Beyond the bound, callers are counted as one."""
        with self._lock:
            named = (op, code, caller)
            known = named in self._refusals or len(self._refusals) < _REFUSALS_MAX
            self._refusals[named if known else (op, code, OTHER)] += 1

    def delivered(self, topic: str, rows: int) -> None:
        """Leased messages left for a consumer."""
        with self._lock:
            self._topic(topic).delivered += rows

    def lateness(self, topic: str, lateness_us: NDArray[np.int64]) -> None:
        """How long after max(due, produced) user code got each message."""
        seconds = lateness_us / 1e6
        with self._lock:
            self._topic(topic).lateness.add_all(seconds)

    def session_opened(self, consumes: str = "") -> None:
        """A session came: of a consumer of that topic, or of somebody who follows something."""
        with self._lock:
            self._sessions_opened += 1
            if consumes:
                self._consumers[series_of(consumes)] += 1

    def session_closed(self, consumes: str = "") -> None:
        """It went."""
        with self._lock:
            self._sessions_closed += 1
            if consumes:
                topic = series_of(consumes)
                self._consumers[topic] -= 1
                if not self._consumers[topic]:
                    del self._consumers[topic]

    def unauthenticated(self) -> None:
        """A call came without a token that is known."""
        with self._lock:
            self._unauthenticated += 1

    def connection_ended(self, why: str) -> None:
        """The guard ended a connection."""
        with self._lock:
            self._connections_ended[why] += 1

    def connections_seen(self, count: int, strangers: int) -> None:
        """How many there are, and of how many no call was let in yet."""
        with self._lock:
            self._connections, self._strangers = count, strangers

    def _topic(self, name: str) -> TopicCounts:
        name = series_of(name)
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= self._topics_max:
                return self._other
            found = self._topics[name] = TopicCounts()
        return found

    # Read by a scrape

    def named(self) -> set[str]:
        """The topics that have series of their own."""
        with self._lock:
            return set(self._topics)

    def name(self, topics: list[str]) -> set[str]:
        """Gives existing topics series of their own, as long as there is room; all that have."""
        with self._lock:
            for topic in topics:
                self._topic(topic)
            return set(self._topics)

    def forget(self, topics: set[str]) -> None:
        """Deleted topics: their series end."""
        with self._lock:
            for topic in topics - {INBOXES}:
                self._topics.pop(topic, None)

    def topics(self) -> dict[str, TopicCounts]:
        """Copies of what was counted, by topic, the shared one last."""
        with self._lock:
            copies = {name: counts.copy() for name, counts in sorted(self._topics.items())}
            if len(self._topics) >= self._topics_max:
                copies[OTHER] = self._other.copy()
            return copies

    def refusals(self) -> dict[tuple[str, str, str], int]:
        """By operation and code."""
        with self._lock:
            return dict(sorted(self._refusals.items()))

    def sessions_ended_silent(self, count: int) -> None:
        """So many were ended because nothing came from their consumers."""
        with self._lock:
            self._sessions_silent += count

    def silent_sessions(self) -> int:
        """How many were ended for their silence."""
        return self._sessions_silent

    def sessions(self) -> tuple[int, int]:
        """How many were opened, and how many of them are open."""
        with self._lock:
            return self._sessions_opened, self._sessions_opened - self._sessions_closed

    def consumers(self) -> dict[str, int]:
        """Sessions of consumers by topic, of topics that have some."""
        with self._lock:
            return dict(self._consumers)

    def unauthenticated_calls(self) -> int:
        """How many there were."""
        with self._lock:
            return self._unauthenticated

    def connections(self) -> tuple[int, int, dict[str, int]]:
        """How many there are, how many of them wait for their first call, and how many were ended, by reason."""
        with self._lock:
            return self._connections, self._strangers, dict(self._connections_ended)

    def text(self, shard: Shard) -> str:
        """Everything in Prometheus' text format. Takes some milliseconds with many topics."""
        # Imported late: a broker is ready sooner without it.
        from fasti.broker.metrics.text import write

        return write(self, shard)


Int64s = NDArray[np.int64]

_ROWS_MAX = 1 << 20


@dataclass(slots=True)
class _Note:
    ids: Int64s
    ready_us: Int64s
    left: int


class LatenessBook:
    """Notes of deliveries by their token; any thread. When there are too many the oldest are dropped."""

    def __init__(self) -> None:
        self._notes: OrderedDict[int, _Note] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def delivered(self, token: int, ids: Int64s, ready_us: Int64s) -> None:
        """These may be started from `ready_us` on: when they are due and there."""
        with self._lock:
            note = self._notes.get(token)
            if note is not None:
                # A large delivery comes in parts.
                ids = np.concatenate([note.ids, ids])
                ready_us = np.concatenate([note.ready_us, ready_us])
                self._rows -= len(note.ids)
            self._notes[token] = _Note(ids, ready_us, len(ids))
            self._rows += len(ids)
            while self._rows > _ROWS_MAX and len(self._notes) > 1:
                self._rows -= len(self._notes.popitem(last=False)[1].ids)

    def started(self, ids: Int64s, tokens: Int64s, started_us: Int64s) -> Int64s:
        """The lateness of those that were started (not 0) and are known."""
        if not len(ids):
            return ids
        if len(tokens) == 1 or (tokens == tokens[0]).all():
            return self._of_token(int(tokens[0]), ids, started_us)
        order = np.argsort(tokens, kind="stable")
        starts = np.flatnonzero(np.diff(tokens[order])) + 1
        return np.concatenate(
            [
                self._of_token(int(tokens[rows[0]]), ids[rows], started_us[rows])
                for rows in np.split(order, starts)
            ]
        )

    def _of_token(self, token: int, ids: Int64s, started_us: Int64s) -> Int64s:
        with self._lock:
            note = self._notes.get(token)
            if note is None:
                return ids[:0]
            note.left -= len(ids)
            if note.left <= 0:
                del self._notes[token]
                self._rows -= len(note.ids)
        ready_us = _find(note, ids)
        known = (ready_us > 0) & (started_us > 0)
        return (started_us - ready_us)[known]


def _find(note: _Note, ids: Int64s) -> Int64s:
    # Whole batches are acked as they came.
    if len(ids) == len(note.ids) and (ids == note.ids).all():
        return note.ready_us
    order = np.argsort(note.ids)
    places = order[np.searchsorted(note.ids, ids, sorter=order).clip(max=len(order) - 1)]
    return np.where(note.ids[places] == ids, note.ready_us[places], 0)
