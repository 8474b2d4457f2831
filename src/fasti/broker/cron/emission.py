"""The messages that schedules emit: rows made ahead for thousands of schedules at once.

Schedules that happen at the same moments and go to the same topic stand together in chunks. What
doesn't depend on the occurrence (payloads, names of headers) is built once per chunk; an occurrence
then costs a few columnar operations, whatever the number of its schedules.

Every message has the headers `fasti-schedule`, the schedule's name, and `fasti-occurrence`, its
moment in UTC. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.cron.occurrences import local_text, zone_of
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.cron.schedule import Schedule
from fasti.core.fields import FIELDS
from fasti.core.keys import Rows

Int64s = NDArray[np.int64]

NAME_HEADER, OCCURRENCE_HEADER = "fasti-schedule", "fasti-occurrence"
CHUNK_ROWS = 5_000


@dataclass(slots=True)
class Member:
    """A schedule as the scheduler knows it."""

    number: int
    version: int
    last_us: int
    name: str
    schedule: Schedule


def occurrence_text(at_us: int) -> str:
    """ISO 8601 in UTC."""
    return local_text(at_us, UTC).replace("+00:00", "Z")


def render(member: Member, at_us: int) -> bytes:
    """A payload with its words in {{ }} filled in."""
    schedule = member.schedule
    local = local_text(at_us, zone_of(schedule.timezone))
    payload = schedule.payload
    for word, text in (
        (b"{{schedule}}", member.name),
        (b"{{occurrence}}", occurrence_text(at_us)),
        (b"{{local}}", local),
        (b"{{date}}", local[:10]),
    ):
        payload = payload.replace(word, text.encode())
    return payload


class Chunk:
    """At most 5,000 schedules that fire together. Columns are made when they are needed."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._built = False
        self.numbers: Int64s = np.zeros(0, dtype=np.int64)
        self.versions = self.last_us = self._jitter = self.numbers
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._fixed: dict[str, pa.Array] = {}
        self._templates: list[Member] | None = None
        self._offsets = self._names = self._values = self._is_occurrence = pa.nulls(0)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        self._keep_last()
        self._members[member.number] = member

    def remove(self, number: int) -> None:
        self._keep_last()
        del self._members[number]

    def _keep_last(self) -> None:
        """What was fired meanwhile is with the columns: they are about to be made anew."""
        if self._built:
            for member, last_us in zip(self._members.values(), self.last_us.tolist(), strict=True):
                member.last_us = last_us
            self._built = False

    def build(self) -> None:
        """Makes the columns, if anything has changed."""
        if self._built:
            return
        members = list(self._members.values())
        self.numbers = np.array([m.number for m in members], dtype=np.int64)
        self.versions = np.array([m.version for m in members], dtype=np.int64)
        self.last_us = np.array([m.last_us for m in members], dtype=np.int64)
        self._jitter = np.array([m.schedule.jitter_us for m in members], dtype=np.int64)
        self._hashes = public_hashes(pa.array([m.name for m in members]))
        self._fixed = _fixed_columns(members)
        templated = any(m.schedule.template for m in members)
        self._templates = members if templated else None
        self._build_headers(members)
        self._built = True

    def _build_headers(self, members: list[Member]) -> None:
        headers = [
            {**m.schedule.headers, NAME_HEADER: m.name, OCCURRENCE_HEADER: ""} for m in members
        ]
        ends = [0, *accumulate(map(len, headers))]
        self._offsets = pa.array(ends, type=pa.int32())
        self._names = pa.array(list(chain.from_iterable(headers)), type=pa.string())
        values = list(chain.from_iterable(named.values() for named in headers))
        self._values = pa.array(values, type=pa.string())
        self._is_occurrence = pc.equal(self._names, OCCURRENCE_HEADER)

    def rows(self, at_us: int, which: NDArray[np.intp] | None) -> Rows:
        """The messages of one occurrence, of all schedules or of some."""
        text = pa.scalar(occurrence_text(at_us))
        values = pc.if_else(self._is_occurrence, text, self._values)
        columns = dict(self._fixed)
        columns["headers"] = pa.MapArray.from_arrays(self._offsets, self._names, values)
        if self._templates is not None:
            payloads = [
                render(m, at_us) if m.schedule.template else m.schedule.payload
                for m in self._templates
            ]
            columns["payload"] = pa.array(payloads, type=pa.binary())
        schema = pa.schema([FIELDS[name] for name in columns])
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
        return Rows(batch if which is None else batch.take(pa.array(which)))

    def due_us(self, at_us: int) -> Int64s:
        """The occurrence, and each schedule's jitter, the same whenever it is asked."""
        due = np.full(len(self.numbers), at_us, dtype=np.int64)
        wide = np.flatnonzero(self._jitter)
        if len(wide):
            mixed = _mixed(self._hashes[wide] ^ np.uint64(at_us))
            due[wide] += (mixed % self._jitter[wide].astype(np.uint64)).astype(np.int64)
        return due


def _fixed_columns(members: list[Member]) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {
        "payload": pa.array([m.schedule.payload for m in members], type=pa.binary())
    }
    for name in ("content_type", "subject"):
        texts: list[Any] = [getattr(m.schedule, name) or None for m in members]
        if any(texts):
            columns[name] = pa.array(texts, type=pa.string())
    return columns


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads neighbouring values over all 64 bits (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def one_row(name: str, schedule: Schedule, at_us: int) -> Rows:
    """The message of one schedule at a moment."""
    chunk = Chunk()
    chunk.add(Member(0, 0, 0, name, schedule))
    chunk.build()
    return chunk.rows(at_us, None)
