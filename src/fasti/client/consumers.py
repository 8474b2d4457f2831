"""Consumers as operators see them: who, from where, and what each has."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fasti.client.durations import as_datetime


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of one topic, or of one group of a log, as it was when it was asked for.

    It is listed while a session has its name or a lease is its own: one that is gone (`connected` is
    false) may still have leases, until they end.
    """

    topic: str
    # Of logs; elsewhere it is empty.
    group: str
    consumer: str
    connected: bool
    # Where it comes from, as `host:port`, or `embedded`; None if it is not connected.
    peer: str | None
    # How many messages it still waits for: 0 while it has as many as it wants.
    credit: int
    # How many messages it has now.
    leases: int
    # When the first of these was handed to it, and when the first of these leases ends.
    oldest_lease: datetime | None
    lease_until: datetime | None
    # Since when it is connected, when it last asked for messages or finished some, and when it was
    # last heard of at all: a consumer that works on one message for long still says that it lives.
    connected_since: datetime | None
    active: datetime | None
    heard: datetime | None
    # When all of this was so, on the broker's clock.
    at: datetime

    @property
    def idle_s(self) -> float | None:
        """For how many seconds it has neither asked for messages nor finished any."""
        return None if self.active is None else max(0.0, (self.at - self.active).total_seconds())

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_reply(cls, row: dict[str, Any], now_us: int) -> ConsumerInfo:
        """From the protocol's object."""
        return cls(
            row["topic"],
            row["group"],
            row["consumer"],
            bool(row["connected"]),
            row["peer"],
            int(row["credit"]),
            int(row["leases"]),
            _moment(row["oldest_lease_us"]),
            _moment(row["lease_until_us"]),
            _moment(row["connected_us"]),
            _moment(row["active_us"]),
            _moment(row["heard_us"]),
            as_datetime(now_us),
        )


def _moment(at_us: int | None) -> datetime | None:
    return None if at_us is None else as_datetime(at_us)
