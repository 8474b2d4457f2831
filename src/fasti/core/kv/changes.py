"""Deciding changes of key-value topics: put and delete.

Rows of one batch that have the same key are treated as if they had come one after another. A
version that a row expects is compared with the one that the entry has at that moment: 0 where
there is none, or where it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns.hashing import UInt64s, repeated_keys
from fasti.core.keys import Rows as Contents
from fasti.core.kv.commands import ANY_VERSION, KvDelete, KvPut
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.kv.partition import Found, KvPartition
from fasti.core.replies import Reply, blank
from fasti.core.state import Partitions, Topic
from fasti.core.work import Work, column
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, SEQUENCE_BITS, Outcome

Int64s = NDArray[np.int64]
Rows = NDArray[np.intp]
# As wide as the arena's column.
_VERSION_MAX = (1 << 32) - 1


def put(work: Work, command: KvPut) -> Reply:
    """New values. A row whose version is not the present one says `conflict`, and which it is."""
    topic = _check(work, command)
    expires = _expiries(work, command)
    _check_room(work, topic, len(command.rows))
    reply = blank(len(command.rows))
    for part in _parts(work, topic, command, reply):
        part.expires = expires[part.begin : part.begin + len(part.piece)]
        for partition, rows in part.routes():
            part.put(partition, rows)
    return reply


def delete(work: Work, command: KvDelete) -> Reply:
    """Entries go. A key without one says `not_found`."""
    topic = _check(work, command)
    reply = blank(len(command.rows))
    for part in _parts(work, topic, command, reply):
        for partition, rows in part.routes():
            part.delete(partition, rows)
    return reply


def _check(work: Work, command: KvPut | KvDelete) -> Topic:
    topic = work.topic(command.topic)
    if not len(command.rows):
        raise InvalidArgument("a batch has at least one row", field="key")
    if len(command.keys) != len(command.rows):
        raise InvalidArgument("keys and values differ in number", field="key")
    if not command.keys.given.all():
        raise InvalidArgument("every row needs a key", field="key")
    versions = column(command.versions, len(command.rows), "version")
    if len(versions) and int(versions.min()) < ANY_VERSION:
        raise InvalidArgument("a version is 0 (no entry) or more", field="version")
    return topic


def _check_room(work: Work, topic: Topic, rows: int) -> None:
    """Half a batch must not be refused: there is room for all of it, on any partition, or none."""
    work.state.memory.require_rows(rows, len(topic.partitions))


def _expiries(work: Work, command: KvPut) -> Int64s:
    """When each row expires: DUE_MAX_US for never."""
    count, when, now_us = len(command.rows), command.expires, work.now_us
    if when is None or (when.due_us is None and when.delay_us is None):
        return np.full(count, DUE_MAX_US, dtype=np.int64)
    if when.delay_us is not None:
        ttl = column(when.delay_us, count, "ttl")
        if int(ttl.min()) <= 0:
            raise InvalidArgument("a time to live must be positive", field="ttl_us", limit=1)
        # Beyond the end of time is for ever.
        return now_us + np.minimum(ttl, DUE_MAX_US - now_us)
    assert when.due_us is not None
    due = column(when.due_us, count, "expires")
    if int(due.min()) <= now_us:
        raise InvalidArgument("an expiry must lie in the future", field="expires_us")
    return np.minimum(due, DUE_MAX_US)


def _parts(work: Work, topic: Topic, command: KvPut | KvDelete, reply: Reply) -> list[_Part]:
    """The rows of each frame. The next one is brought when the one before is decided."""
    versions = None
    if not (isinstance(command.versions, int) and command.versions == ANY_VERSION):
        versions = column(command.versions, len(command.rows), "version")
        if (versions == ANY_VERSION).all():
            versions = None
    parts, begin = [], 0
    for piece in command.rows.split():
        parts.append(_Part(work, topic, command, piece, begin, versions, reply))
        begin += len(piece)
    return parts


@dataclass(slots=True)
class _Part:
    """The rows of one frame: decides them and fills in their part of the reply."""

    work: Work
    topic: Topic
    command: KvPut | KvDelete
    piece: Contents
    begin: int
    # None: nobody cares.
    versions: Int64s | None
    reply: Reply
    expires: Int64s | None = None

    def routes(self) -> list[tuple[KvPartition, Rows]]:
        """Brings the frame; which rows go to which partition."""
        self.work.bring(self.piece)
        rows = np.arange(len(self.piece))
        partitions = cast("Partitions[KvPartition]", self.topic.partitions)
        if len(partitions) == 1:
            return [(partitions[0], rows)]
        numbers = self.command.keys.partitions(len(partitions))
        mine = numbers[self.begin : self.begin + len(self.piece)]
        return [(partitions[n], rows[mine == n]) for n in np.unique(mine).tolist()]

    def _hashes(self, rows: Rows) -> UInt64s:
        return self.command.keys.hashes[self.begin + rows]

    def _wanted(self, rows: Rows) -> Int64s | None:
        return None if self.versions is None else self.versions[self.begin + rows]

    def _tell(
        self,
        partition: KvPartition,
        rows: Rows,
        status: Outcome,
        sequences: Int64s,
        versions: Int64s,
    ) -> None:
        places = self.begin + rows
        self.reply.status[places] = status
        self.reply.versions[places] = versions
        named = sequences | partition.number << SEQUENCE_BITS
        self.reply.ids[places] = np.where(versions > 0, named, 0)

    # Put

    def put(self, partition: KvPartition, rows: Rows) -> None:
        """Decides rows of one partition."""
        later = repeated_keys(self._hashes(rows))
        if later is None:
            self._put_once(partition, rows)
            return
        self._put_once(partition, rows[~later])
        if self.versions is None:
            self._put_again(partition, rows[later])
        else:
            self._put_in_turn(partition, rows[later])

    def _put_once(self, partition: KvPartition, rows: Rows) -> None:
        """Rows of which no two have the same key."""
        found = partition.find(self._hashes(rows), self.work.now_us)
        wanted = self._wanted(rows)
        good = np.where(found.live, found.versions, partition.floor) < _VERSION_MAX
        if wanted is not None:
            good &= (wanted == ANY_VERSION) | (wanted == found.versions)
        if not good.all():
            bad = ~good
            self._tell(
                partition, rows[bad], Outcome.CONFLICT, found.sequences[bad], found.versions[bad]
            )
        expired = good & found.stored & ~found.live
        if expired.any():
            self._remove(partition, found.sequences[expired], rows[expired], expired=1)
        fresh = good & ~found.live
        if fresh.any():
            self._create(partition, rows[fresh], new_keys=not found.sequences.any())
        over = good & found.live
        if over.any():
            at = slice(None) if over.all() else over
            versions = found.versions[at] + 1
            self._replace(partition, rows[at], found.sequences[at], found.slots[at], versions)

    def _create(self, partition: KvPartition, rows: Rows, new_keys: bool = False) -> None:
        assert self.expires is not None
        first, version = partition.ledger.next_sequence, partition.floor + 1
        sequences = np.arange(first, first + len(rows), dtype=np.int64)
        self._tell(partition, rows, Outcome.OK, sequences, np.full(len(rows), version))
        self.work.emit(
            KvProduced(
                self.work.now_us,
                self.topic.number,
                partition.number,
                first,
                "",
                "",
                self.expires[rows],
                rows.astype(np.int64),
                self._hashes(rows),
                new_keys,
                version=version,
            )
        )

    def _replace(
        self,
        partition: KvPartition,
        rows: Rows,
        sequences: Int64s,
        slots: Int64s,
        versions: Int64s,
    ) -> None:
        assert self.expires is not None
        self._tell(partition, rows, Outcome.OK, sequences, versions)
        self.work.emit(
            ev.Replaced(
                self.work.now_us,
                self.topic.number,
                partition.number,
                sequences,
                versions,
                self.expires[rows],
                rows.astype(np.int64),
            ),
            slots,
        )

    def _put_again(self, partition: KvPartition, rows: Rows) -> None:
        """Rows whose key stood earlier in the batch, and nobody expects a version: the last wins.

        The entry is there by now. Each row says the version that it would have had.
        """
        found = partition.find(self._hashes(rows), self.work.now_us)
        order = np.argsort(found.sequences, kind="stable")
        ordered = found.sequences[order]
        starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
        sizes = np.diff([*starts, len(ordered)])
        nth = np.arange(len(ordered)) - np.repeat(starts, sizes) + 1
        versions = np.minimum(found.versions[order] + nth, _VERSION_MAX)
        self._tell(partition, rows[order], Outcome.OK, ordered, versions)
        last = starts + sizes - 1
        at = order[last]
        self._replace(partition, rows[at], ordered[last], found.slots[at], versions[last])

    def _put_in_turn(self, partition: KvPartition, rows: Rows) -> None:
        """The same where versions are expected: each row is judged by what the one before left.

        A loop over rows, of which there are some only where a batch has a key several times.
        """
        rest = self._create_missing(partition, rows)
        if not len(rest):
            return
        found = partition.find(self._hashes(rest), self.work.now_us)
        wanted = self._wanted(rest)
        assert wanted is not None
        current = dict(zip(found.sequences.tolist(), found.versions.tolist(), strict=True))
        last: dict[int, int] = {}
        status = np.zeros(len(rest), dtype=np.uint8)
        versions = np.zeros(len(rest), dtype=np.int64)
        for place, (sequence, version) in enumerate(
            zip(found.sequences.tolist(), wanted.tolist(), strict=True)
        ):
            if version in (ANY_VERSION, current[sequence]) and current[sequence] < _VERSION_MAX:
                current[sequence] += 1
                last[sequence] = place
            else:
                status[place] = Outcome.CONFLICT
            versions[place] = current[sequence]
        for outcome in (Outcome.OK, Outcome.CONFLICT):
            at = status == outcome
            self._tell(partition, rest[at], outcome, found.sequences[at], versions[at])
        if last:
            at = np.array(list(last.values()))
            self._replace(partition, rest[at], found.sequences[at], found.slots[at], versions[at])

    def _create_missing(self, partition: KvPartition, rows: Rows) -> Rows:
        """Of keys that still have no entry, the first row that makes one does; returns the rest."""
        found = partition.find(self._hashes(rows), self.work.now_us)
        missing = np.flatnonzero(~found.live)
        if not len(missing):
            return rows
        wanted = self._wanted(rows[missing])
        assert wanted is not None
        keys = [tuple(pair) for pair in self._hashes(rows[missing]).tolist()]
        made: dict[tuple[int, ...], int] = {}
        refused: list[int] = []
        for place, key, version in zip(missing.tolist(), keys, wanted.tolist(), strict=True):
            if key in made:
                continue
            if version in (ANY_VERSION, 0) and partition.floor < _VERSION_MAX:
                made[key] = place
            else:
                refused.append(place)
        none = np.zeros(len(refused), dtype=np.int64)
        self._tell(partition, rows[refused], Outcome.CONFLICT, none, none)
        if made:
            first = np.array(sorted(made.values()))
            expired = first[found.stored[first]]
            if len(expired):
                self._remove(partition, found.sequences[expired], rows[expired], expired=1)
            self._create(partition, rows[first])
        rest = np.ones(len(rows), dtype=np.bool_)
        rest[[*refused, *made.values()]] = False
        return rows[rest]

    # Delete

    def delete(self, partition: KvPartition, rows: Rows) -> None:
        """Decides rows of one partition. What is gone is not found by the rows that follow."""
        found = partition.find(self._hashes(rows), self.work.now_us)
        wanted = self._wanted(rows)
        status = np.where(found.live, Outcome.OK, Outcome.NOT_FOUND)
        if wanted is not None:
            status[found.live & (wanted != ANY_VERSION) & (wanted != found.versions)] = (
                Outcome.CONFLICT
            )
        good = np.flatnonzero(status == Outcome.OK)
        if len(good):
            _, first = np.unique(found.sequences[good], return_index=True)
            good = good[np.sort(first)]
            if len(good) < len(rows):
                self._mark_gone(found, good, status)
        for outcome in (Outcome.OK, Outcome.CONFLICT, Outcome.NOT_FOUND):
            at = status == outcome
            if at.any():
                known = found.versions[at] if outcome != Outcome.NOT_FOUND else np.zeros(at.sum())
                versions = known.astype(np.int64)
                self._tell(partition, rows[at], outcome, found.sequences[at], versions)
        if len(good):
            self._remove(partition, found.sequences[good], rows[good], expired=0)

    @staticmethod
    def _mark_gone(found: Found, good: Rows, status: NDArray[np.int64]) -> None:
        """Rows behind the one that deleted their entry."""
        deleted = found.sequences[good]
        order = np.argsort(deleted)
        at = np.searchsorted(deleted[order], found.sequences).clip(max=len(good) - 1)
        same = deleted[order][at] == found.sequences
        behind = np.arange(len(status)) > good[order][at]
        status[same & behind] = Outcome.NOT_FOUND

    def _remove(self, partition: KvPartition, sequences: Int64s, rows: Rows, expired: int) -> None:
        self.work.emit(
            Removed(
                self.work.now_us,
                self.topic.number,
                partition.number,
                expired,
                sequences,
                rows.astype(np.int64),
            )
        )
