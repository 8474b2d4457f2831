"""A producer of a topic on several shards: each row goes to the shard that has its partition."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from fasti.client.durations import Duration, duration_us
from fasti.client.failures import FailureReports, Failures, OnFailure
from fasti.client.outboxes import Outboxes
from fasti.client.producer import Cut, OnConflict, Producer, check_conflict, checked_partition
from fasti.client.receipts import Receipt
from fasti.client.transport import Transport
from fasti.model import Limits


class ShardedProducer(Producer):
    """As `Producer`, over one producer for each shard. Order holds per key and per partition.

    The first send waits until it is known where the topic lies.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str = "",
        *,
        limits: Limits | None = None,
        max_block: Duration = "30s",
        deadline: Duration = "2m",
        buffer_rows: int = 200_000,
        buffer_bytes: int = 64 << 20,
        on_failure: OnFailure | None = None,
        reports: FailureReports | None = None,
    ) -> None:
        # What is wrong with them is told now.
        duration_us(max_block, "max_block")
        duration_us(deadline, "deadline")
        self.topic, self.owner = topic, owner
        self._limits = limits or Limits()
        make = partial(
            _make,
            topic=topic,
            owner=owner,
            limits=self._limits,
            max_block=max_block,
            deadline=deadline,
            buffer_rows=buffer_rows,
            buffer_bytes=buffer_bytes,
        )
        failures = Failures(topic, on_failure, reports)
        self._boxes = self._box = Outboxes(transport, topic, make, failures, self._limits)

    @property
    def _ready(self) -> bool:  # type: ignore[override]
        """Whether it is known where the topic lies."""
        return self._boxes.knows_layout

    def _get_ready(self) -> None:
        """Waits until it is. Raises `unavailable`, `timed_out`."""
        _ = self._boxes.layout

    def send(
        self,
        payload: bytes,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        priority: int | None = None,
        subject: str | None = None,
        partition: int | None = None,
        expires: Duration | datetime | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Receipt:
        """Puts one message, as `Producer.send`."""
        if partition is not None or key is not None:
            sender = self._sender(key, partition)
        else:
            sender = self._boxes.sender_in_turn()
        return sender.send(
            payload,
            delay=delay,
            at=at,
            due=due,
            key=key,
            headers=headers,
            content_type=content_type,
            priority=priority,
            subject=subject,
            partition=partition,
            expires=expires,
            on_conflict=on_conflict,
        )

    def _sender(self, key: Any, partition: int | None) -> Producer:
        layout = self._boxes.layout
        shard = layout.all_shards[0]
        if partition is not None:
            shard = layout.shard_of(checked_partition(partition) or 0)
        elif isinstance(key, str):
            # What can't be encoded is refused like any other bad key.
            with suppress(UnicodeEncodeError):
                shard = layout.shard_of_key(key)
        return self._boxes.sender(shard)

    def cut(
        self, batch: pa.RecordBatch, on_conflict: str, atomic: bool, partition: int | None = None
    ) -> Cut:
        """A batch as the pieces in which it travels. Raises `cross_shard`."""
        check_conflict(on_conflict)
        return self._boxes.cut(batch, atomic, partition)


def _make(transport: Transport, failures: Failures, **named: Any) -> Producer:
    return Producer(transport, failures=failures, **named)
