"""A log as a whole: where its partitions begin and end, what was there at a time, truncation.

Made by `client.log(topic)`; any thread may call.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fasti.client.durations import moment_us
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition as it was when it was asked for: rows `earliest` to `end` − 1 are there."""

    partition: int
    earliest: int
    end: int
    bytes: int = 0
    segments: int = 0

    @property
    def rows(self) -> int:
        """How many rows are there."""
        return self.end - self.earliest

    @classmethod
    def of_reply(cls, header: Header) -> LogPartition:
        """From the protocol's object; fields that we don't know are left out."""
        return cls(**{name: header[name] for name in _PARTITION if name in header})


_PARTITION = [column.name for column in fields(LogPartition)]


class Log:
    """One log.

    log = client.log("events")
    log.describe()[0].end                                   # the offset that the next row gets
    log.truncate(before=1000, partition=0)
    log.truncate(before=datetime.now(UTC) - timedelta(days=7))
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self.topic = topic
        self._transport = transport

    def describe(self) -> list[LogPartition]:
        """Each partition: its earliest offset, its end, bytes, segments."""
        header, _ = self._transport.call("log", {"topic": self.topic})
        return [LogPartition.of_reply(partition) for partition in header["partitions"]]

    def offset_at(self, moment: Any, partition: int | None = None) -> Any:
        """The first offset that was appended at the moment or later, or the end.

        A number for a partition, else a dict of them by partition.
        """
        header: Header = {"topic": self.topic, "time_us": moment_us(moment, "moment")}
        if partition is not None:
            header["partition"] = partition
        reply, _ = self._transport.call("offsets", header)
        offsets = {int(number): int(offset) for number, offset in reply["offsets"].items()}
        return offsets if partition is None else offsets[partition]

    def truncate(
        self, before: int | datetime | str, *, partition: int | None = None
    ) -> list[LogPartition]:
        """Drops the rows below an offset, before a moment, or all (`"end"`); for good.

        An offset is for one partition: name it if there are several. Groups that had not acked
        all of what is dropped answer `gone` until they are reset. Gives the partitions as they
        are then.
        """
        header: Header = {"topic": self.topic}
        if partition is not None:
            header["partition"] = partition
        if isinstance(before, datetime):
            header["time_us"] = moment_us(before, "before")
        elif before == "end":
            header["start"] = "latest"
        elif isinstance(before, int) and not isinstance(before, bool):
            header["before"] = before
        else:
            raise InvalidArgument(
                f"before must be an offset, an aware datetime or 'end', not {before!r}",
                field="before",
            )
        reply, _ = self._transport.call("truncate", header)
        return [LogPartition.of_reply(partition) for partition in reply["partitions"]]

    def __repr__(self) -> str:
        return f"<Log {self.topic!r}>"
