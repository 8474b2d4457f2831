"""The broker's clock as operators see it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from fasti.client.durations import as_datetime


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """What the broker goes by, beside its machine's wall clock."""

    # By this everything is decided: what is due, what has expired.
    now: datetime
    wall: datetime
    # `following` the wall; `slowed`, because the wall was set back; or `doubting` a leap of it ahead.
    state: str
    # In how long a leap that lasts is believed; None if there is none.
    believed_in: timedelta | None

    @property
    def offset_s(self) -> float:
        """By how many seconds the wall clock is ahead of it; negative if it is behind."""
        return (self.wall - self.now).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_reply(cls, reply: dict[str, Any]) -> ClockInfo:
        """From the protocol's object."""
        left_us = reply["believed_in_us"]
        return cls(
            as_datetime(int(reply["now_us"])),
            as_datetime(int(reply["wall_us"])),
            str(reply["state"]),
            None if left_us is None else timedelta(microseconds=int(left_us)),
        )
