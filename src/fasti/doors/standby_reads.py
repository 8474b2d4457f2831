"""A shard that this broker stands by for, as a stale read has it (broker/stale.py).

The engine of a standby keeps nothing in line that falls due, since it hands out nothing. So what of the scheduled
messages is ready is counted from their rows, in the reader's thread. And it doesn't time leases: until when one
runs is not told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fasti.broker.clock import EngineClock
from fasti.broker.stale import StaleStore
from fasti.cluster.standby import NotReadable, Standby
from fasti.config import ShardSettings
from fasti.core.commands import Count, TakeSnapshot
from fasti.core.kv.commands import KvDescribe
from fasti.core.layout import ShardPlace
from fasti.core.queries import ReadTopics, TopicView
from fasti.core.replies import Counts, Done, Messages
from fasti.core.rows.arena import STATE_MASK
from fasti.core.rows.scan import Scan
from fasti.core.rows.snapshot import Snapshot
from fasti.core.still_reads import CountRows, RowCounts
from fasti.errors import FastiError
from fasti.model import DUE_MAX_US, MINUTE_US, State
from fasti.protocol.feed_name import FeedName
from fasti.storage.payloads import Payloads

_COUNT_US = 10 * MINUTE_US


class _Store(NamedTuple):
    payloads: Payloads
    seed: tuple[int, int]


class StandbyShard:
    """For one request. Raises `elsewhere()` when the standby can't be read from."""

    def __init__(
        self,
        standby: Standby,
        place: ShardPlace,
        settings: ShardSettings,
        clock: EngineClock,
        elsewhere: Callable[[], FastiError],
    ) -> None:
        self._standby, self._elsewhere = standby, elsewhere
        self.place, self.settings, self.clock = place, settings, clock
        self.as_of_us = 0

    @property
    def store(self) -> StaleStore:
        """Where the contents are."""
        payloads, manifest = self._standby.payloads, self._standby.manifest
        if payloads is None or manifest is None:
            raise self._elsewhere()
        return _Store(payloads, manifest.seed)

    @property
    def feed_name(self) -> FeedName:
        """What positions of the change feed belong to."""
        manifest = self._standby.manifest
        if manifest is None:
            raise self._elsewhere()
        return FeedName(str(self.place.number), f"{manifest.incarnation:016x}")

    def call(self, command: Any, timeout: float | None = None, lead: bool = False) -> Any:
        """The reply to a command that changes nothing."""
        if isinstance(command, (Count, KvDescribe)) and not self._is_log(command.topic):
            return self._count(command)
        (reply,) = self._read(command)
        if isinstance(reply, Messages) and reply.columns:
            reply.columns["lease_until_us"] = np.zeros(len(reply.ids), dtype=np.int64)
        elif isinstance(command, TakeSnapshot) and reply.error is None:
            reply.value.leases.until_us[:] = 0
        return reply

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Its reader has done with it."""
        self._standby.drop_snapshot(snapshot)

    def _read(self, *commands: Any) -> list[Any]:
        try:
            replies, as_of_us = self._standby.read(commands, self.clock.now_us())
        except NotReadable:
            raise self._elsewhere() from None
        # Several answers are as of the first.
        self.as_of_us = self.as_of_us or as_of_us
        return replies

    def _is_log(self, name: str) -> bool:
        (reply,) = self._read(ReadTopics(name=name))
        topics: list[TopicView] = reply.value
        return bool(topics) and topics[0].settings.kind == "log"

    def _count(self, command: Count | KvDescribe) -> Any:
        (reply,) = self._read(CountRows(command.topic, self.clock.now_us() + _COUNT_US))
        if reply.error is not None:
            return reply
        counts: RowCounts = reply.value
        try:
            due, endless = _count_scheduled(counts.topic, counts.snapshot)
        finally:
            self.drop_snapshot(counts.snapshot)
        return (_counts if isinstance(command, Count) else _described)(counts, due, endless)


def _count_scheduled(topic: int, snapshot: Snapshot) -> tuple[int, int]:
    """Of the scheduled ones, how many are due, and how many never will be."""
    due = endless = 0
    for number, partition in snapshot.ledgers:
        if number != topic:
            continue
        for columns in Scan(snapshot, topic, partition, 0, None).parts(("due",)):
            moments = columns["due"][columns["flags"] & STATE_MASK == State.SCHEDULED]
            due += int((moments <= snapshot.at_us).sum())
            endless += int((moments >= DUE_MAX_US).sum())
    return due, endless


def _counts(counts: RowCounts, due: int, endless: int) -> Counts:
    """As an engine that leads has them (core/timeline/reads.py)."""
    totals = counts.totals.tolist()
    return Counts(
        {
            "scheduled": totals[State.SCHEDULED] - due,
            "ready": due,
            "leased": totals[State.LEASED],
            "dead": totals[State.DEAD],
            "staged": totals[State.STAGED],
            "done": totals[State.DONE],
            "cancelled": totals[State.CANCELLED],
        },
        counts.snapshot.position,
    )


def _described(counts: RowCounts, due: int, endless: int) -> Done:
    """As an engine that leads describes a key-value topic (core/kv/kind.py), as far as `kv_describe` tells it."""
    scheduled = int(counts.totals[State.SCHEDULED])
    _, settings = counts.snapshot.topics[counts.topic]
    return Done(
        {
            "topic": counts.topic,
            "entries": scheduled - due,
            "expired": due,
            "removed": int(counts.totals[State.CANCELLED]),
            "expiring": scheduled - endless,
            "partitions": settings.partitions,
            "position": counts.snapshot.position,
        }
    )
