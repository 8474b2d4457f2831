"""A naive model of logs: every row in a list, every rule once more in plain words.

Property tests give the same commands to the engine and to this model and compare all that can be
read. The model is told two things, which the engine may choose freely: the partition of a batch's
rows that have no key, and how many bytes a batch takes (`row_bytes`).

`end_step` is what the engine does at the end of every step: it drops what is too old or too much.
A refused command raises the same `FastiError` as the engine and changes nothing. One thread only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh64_intdigest

from fasti.errors import Gone, InvalidArgument, NotFound
from fasti.model import SECOND_US, SEQUENCE_BITS, TopicSettings

RECEIPTS_KEPT = 8
_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


@dataclass
class Row:
    """One row of a log."""

    offset: int
    payload: bytes
    key: str | None
    at_us: int


@dataclass
class Segment:
    """Rows that go together."""

    rows: list[Row]
    size_bytes: int
    from_us: int


@dataclass
class Partition:
    """Segments, the oldest first. `end` is the offset that the next row gets."""

    segments: list[Segment] = field(default_factory=list)
    end: int = 0

    @property
    def rows(self) -> list[Row]:
        return [row for segment in self.segments for row in segment.rows]

    @property
    def earliest(self) -> int:
        rows = self.rows
        return rows[0].offset if rows else self.end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass
class Topic:
    """A log."""

    settings: TopicSettings
    partitions: list[Partition]


@dataclass
class Producer:
    """The last batch of a producer, and what the last eight were answered."""

    last_sequence: int = 0
    receipts: dict[int, list[int]] = field(default_factory=dict)


class LogModel:
    """All logs of a shard."""

    def __init__(self) -> None:
        self.now_us = 0
        self.topics: dict[str, Topic] = {}
        self.producers: dict[str, Producer] = {}

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise NotFound(f"there is no topic {name!r}")
        return self.topics[name]

    def partition(self, topic: str, number: int) -> Partition:
        partitions = self.topic(topic).partitions
        if not 0 <= number < len(partitions):
            raise InvalidArgument("there is no such partition", field="partition")
        return partitions[number]

    # Commands

    def create_topic(self, name: str, settings: TopicSettings) -> None:
        self.topics[name] = Topic(settings, [Partition() for _ in range(settings.partitions)])

    def change_topic(self, name: str, settings: TopicSettings) -> None:
        self.topic(name).settings = settings

    def delete_topic(self, name: str) -> None:
        self.topic(name)
        del self.topics[name]

    def produce(
        self,
        topic: str,
        payloads: Sequence[bytes],
        keys: Sequence[str | None] | None,
        row_bytes: float,
        *,
        partition: int | None = None,
        chosen: int = 0,
        producer: str = "",
        producer_sequence: int = 0,
    ) -> list[int]:
        """The rows' ids. `chosen` is where the engine put those without a key."""
        log = self.topic(topic)
        if partition is not None:
            self.partition(topic, partition)
        if producer and producer_sequence <= self._producer(producer).last_sequence:
            return self._producer(producer).receipts[producer_sequence]
        numbers = []
        for key in keys or [None] * len(payloads):
            if partition is not None:
                numbers.append(partition)
            elif key is not None:
                numbers.append(partition_of(key, len(log.partitions)))
            else:
                numbers.append(chosen)
        ids = [0] * len(payloads)
        for number in sorted(set(numbers)):
            mine = [row for row, its in enumerate(numbers) if its == number]
            rows = [(payloads[row], keys[row] if keys else None) for row in mine]
            first = self._append(log, number, rows, int(row_bytes * len(mine)))
            for place, row in enumerate(mine):
                ids[row] = number << SEQUENCE_BITS | (first + place + 1)
        if producer:
            self._advance(producer, producer_sequence, ids)
        return ids

    def _append(
        self, log: Topic, number: int, rows: list[tuple[bytes, str | None]], size_bytes: int
    ) -> int:
        partition = log.partitions[number]
        if not partition.segments or self._is_full(partition.segments[-1], log.settings):
            partition.segments.append(Segment([], 0, self.now_us))
        last = partition.segments[-1]
        first = partition.end
        for payload, key in rows:
            last.rows.append(Row(partition.end, payload, key, self.now_us))
            partition.end += 1
        last.size_bytes += size_bytes
        return first

    def _is_full(self, segment: Segment, settings: TopicSettings) -> bool:
        limit = settings.segment_bytes
        if settings.retained_bytes:
            limit = min(limit, settings.retained_bytes // 8)
        old = self.now_us - segment.from_us >= max(settings.segment_age_us // 8, SECOND_US)
        return segment.size_bytes >= limit or (settings.segment_age_us > 0 and old)

    def _producer(self, name: str) -> Producer:
        return self.producers.setdefault(name, Producer())

    def _advance(self, name: str, sequence: int, ids: list[int]) -> None:
        producer = self._producer(name)
        producer.last_sequence = sequence
        producer.receipts[sequence] = ids
        for old in [known for known in producer.receipts if known <= sequence - RECEIPTS_KEPT]:
            del producer.receipts[old]

    def truncate(self, topic: str, number: int, before: int) -> None:
        partition = self.partition(topic, number)
        if not 0 <= before <= partition.end:
            raise InvalidArgument("there is no such offset", field="before")
        _drop(partition, before)

    def read(self, topic: str, number: int, offset: int) -> list[Row]:
        """Every row from an offset on."""
        partition = self.partition(topic, number)
        if not 0 <= offset <= partition.end:
            raise InvalidArgument("there is no such offset", field="offset")
        if offset < partition.earliest:
            raise Gone("the offset is gone")
        return [row for row in partition.rows if row.offset >= offset]

    def find(self, topic: str, number: int, time_us: int) -> int:
        """The first offset at a time or later; the end if there is none."""
        partition = self.partition(topic, number)
        return next((row.offset for row in partition.rows if row.at_us >= time_us), partition.end)

    # Time and transactions

    def end_step(self) -> None:
        """Retention."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                self._retain(partition, topic.settings)

    def _retain(self, partition: Partition, settings: TopicSettings) -> None:
        segments = partition.segments
        if settings.segment_age_us:
            while segments and segments[0].rows[-1].at_us + settings.segment_age_us <= self.now_us:
                segments.pop(0)
        if settings.retained_bytes:
            while len(segments) > 1 and partition.size_bytes > settings.retained_bytes:
                segments.pop(0)

    def save(self) -> tuple[dict[str, Topic], dict[str, Producer]]:
        """For a transaction that may come to nothing."""
        return copy.deepcopy((self.topics, self.producers))

    def restore(self, saved: tuple[dict[str, Topic], dict[str, Producer]]) -> None:
        """It came to nothing."""
        self.topics, self.producers = saved


def _drop(partition: Partition, before: int) -> None:
    segments = partition.segments
    while segments and segments[0].rows[-1].offset < before:
        segments.pop(0)
    if segments and segments[0].rows[0].offset < before:
        rows = segments[0].rows
        gone = before - rows[0].offset
        segments[0].size_bytes -= segments[0].size_bytes * gone // len(rows)
        del rows[:gone]


def partition_of(key: str, count: int) -> int:
    """Rendezvous hashing, a key and a partition at a time."""
    key_hash = xxh64_intdigest(key.encode())
    scores = [_mixed(key_hash ^ ((number + 1) * _STEP & _WORD)) for number in range(count)]
    return scores.index(max(scores))


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return word ^ word >> 33
