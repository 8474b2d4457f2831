"""What a client asks of the broker as a whole: how it is, its clock, its files, its sinks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.client.clock_info import ClockInfo
from fasti.client.durations import Duration, duration_us
from fasti.client.transport import Header, Transport
from fasti.errors import Closed, Unavailable

if TYPE_CHECKING:
    from fasti.client.changes import FeedBounds
    from fasti.client.sinks import SinkState
    from fasti.storage.tools.backup import Backup

# How often a scrub under way is asked how far it is.
_SCRUB_LOOK_S = 0.2


class BrokerCalls:
    """The part of `Client` that is about the broker."""

    transport: Transport
    _timeout_s: float
    _closed: bool

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the client is closed")

    def _call(
        self, action: str, header: Header | None = None, timeout: float | None = None
    ) -> tuple[Header, list[pa.Table]]:
        self._check_open()
        return self.transport.call(action, header, timeout=timeout)

    def health(self) -> dict[str, Any]:
        """`ready` and `state`: serving, stopping or failed."""
        return self._call("health")[0]

    def metrics(self) -> str:
        """The broker's metrics in Prometheus' text format."""
        return str(self._call("metrics")[0]["text"])

    def clock_info(self) -> ClockInfo:
        """What the broker's clock shows, what its machine's does, and how it goes by that."""
        return ClockInfo.of_reply(self._call("clock")[0])

    def accept_clock(self) -> bool:
        """The broker shall believe its machine's clock that leapt ahead: did it doubt that?

        What is due by it is handed out, and what has expired by it goes: this can't be undone.
        """
        return bool(self._call("accept_clock")[0]["changed"])

    def checkpoint(self, timeout: Duration | None = None) -> None:
        """Has the broker write what it holds to runs now; returns when that is done.

        Raises `timed_out` after `timeout`, or that of `connect`; the checkpoint goes on.
        """
        timeout_s = self._timeout_s if timeout is None else duration_us(timeout) / 1_000_000
        header = {"within_us": round(timeout_s * 1_000_000)}
        self._call("checkpoint", header, timeout=timeout_s)

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
        rate: int = 0,
    ) -> Backup:
        """Takes a backup of all that the broker holds, while it runs, into a directory of this machine.

        Everything acknowledged before the call is in it, transactions whole. A directory that has an
        older backup of the same broker gets only what is new. `progress` is called with bytes done
        and bytes in all, about; `rate` is a limit in bytes per second, below the broker's own.
        `fasti restore` makes a data directory of it. Raises `invalid_argument` if the directory has
        something else, `gone` if the broker had to let its files go: run it again then, it goes on.
        """
        self._check_open()
        from pathlib import Path

        from fasti.client.backups import back_up_broker

        return back_up_broker(self.transport, Path(path), progress, rate)

    def scrub(self, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Has the broker read everything that it stores, to find damage; returns when that is done.

        `findings` has a dict for each damaged file: `file`, `offset`, `message`, and in `lost` whose
        payloads it held (`topic`, `count`, `ids`). `progress` is called with bytes done and in all. If a
        scrub is under way already its findings are returned. Raises `unavailable` if it was abandoned,
        because the broker recovered or ended. Of several shards one is read after the other, and each
        finding says which `shard` it is of.
        """
        self._check_open()
        count = self.transport.shard_count
        if count == 1:
            return _scrub(self.transport, progress)
        # One shard after the other: they share a disk.
        done = [_scrub(self.transport.shard(number), progress) for number in range(count)]
        return {
            "started_us": done[0]["started_us"],
            "finished_us": done[-1]["finished_us"],
            "total_bytes": sum(each["total_bytes"] for each in done),
            "read_bytes": sum(each["read_bytes"] for each in done),
            "findings": [
                {**finding, "shard": number}
                for number, each in enumerate(done)
                for finding in each["findings"]
            ],
        }

    def feed(self) -> FeedBounds:
        """Where the change feed begins and ends now."""
        from fasti.client.changes import feed_bounds

        self._check_open()
        return feed_bounds(self.transport)

    def publish(self, stage: str, *, skip_conflicts: bool = False) -> tuple[int, list[int]]:
        """Makes staged messages live: how many, and the ids that were skipped."""
        header, parts = self._call("publish", {"stage": stage, "skip_conflicts": skip_conflicts})
        return int(header["rows"]), parts[0].column("id").to_pylist() if parts else []

    def drop_stage(self, stage: str) -> int:
        """Drops staged messages: how many."""
        header, _ = self._call("drop_stage", {"stage": stage})
        return int(header["rows"])

    def sinks(self) -> list[SinkState]:
        """All sinks that the broker remembers, by name."""
        from fasti.client.sinks import sinks

        self._check_open()
        return sinks(self.transport)


def _scrub(transport: Transport, progress: Callable[[int, int], None] | None) -> dict[str, Any]:
    """A scrub of one shard, from its beginning to its end."""
    reply, _ = transport.call("scrub")
    started_us: int = (reply["current"] or reply["last"])["started_us"]
    while reply["current"] is not None and reply["current"]["started_us"] == started_us:
        if progress is not None:
            progress(reply["current"]["read_bytes"], reply["current"]["total_bytes"])
        time.sleep(_SCRUB_LOOK_S)
        reply, _ = transport.call("scrub_status")
    done: dict[str, Any] | None = reply["last"]
    if done is None or done["started_us"] < started_us:
        raise Unavailable("the scrub was abandoned: the broker recovered; start it again")
    return done
