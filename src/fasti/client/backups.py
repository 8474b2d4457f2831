"""Backups of a broker that runs, into a directory of this machine."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fasti.errors import FastiError
from fasti.storage.tools.backup import (
    Backup,
    Chunk,
    Listing,
    Progress,
    back_up,
    back_up_shards,
)

if TYPE_CHECKING:
    from fasti.client.transport import Transport

_NAMES_PER_READ = 1_000


class BrokerSource:
    """The files of a broker at one position, over whatever leads to it."""

    def __init__(self, transport: Transport, rate: int) -> None:
        self._transport, self._rate = transport, rate
        reply, _ = transport.call("begin_backup")
        self._number: int = reply["backup"]
        names = ("shard", "position", "last", "at_us", "blocks", "journal_bytes")
        given = {name: reply[name] for name in names}
        self.listing = Listing(manifest=base64.b64decode(reply["manifest"]), **given)

    def read(self, names: Sequence[str]) -> Iterator[Chunk]:
        """Pieces as they come; the broker holds its files meanwhile."""
        for begin in range(0, len(names), _NAMES_PER_READ):
            wanted = list(names[begin : begin + _NAMES_PER_READ])
            ticket = {"backup": self._number, "names": wanted, "rate": self._rate}
            for batch in self._transport.read({"call": "backup", **ticket}):
                for row in batch.to_pylist():
                    yield Chunk(row["name"], row["offset"], row["data"])

    def close(self) -> None:
        """The broker need not hold its files any more."""
        with suppress(FastiError):
            self._transport.call("end_backup", {"backup": self._number}, timeout=10.0)


def back_up_broker(
    transport: Transport, path: Path, progress: Progress | None, rate: int
) -> Backup:
    """Everything that the broker holds now, as a directory that `fasti restore` reads."""
    if transport.shard_count == 1:
        return _back_up_shard(transport, path, progress, rate)
    return back_up_shards(
        path,
        transport.shard_count,
        lambda number, folder: _back_up_shard(transport.shard(number), folder, progress, rate),
    )


def _back_up_shard(
    transport: Transport, path: Path, progress: Progress | None, rate: int
) -> Backup:
    source = BrokerSource(transport, rate)
    try:
        return back_up(source, path, progress)
    finally:
        source.close()
