"""Waiting for a broker that is away: for a while, then no longer.

A broker that restarts is back within seconds, and a query that ends because of it has to be started
again by its operator. So questions are asked again, and reads go on behind the last row that came,
while what went wrong may pass; after `timeout` the last error is raised.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from fasti.client.client import Client
from fasti.client.pauses import PASSING, Pauses
from fasti.client.transport import LOCATION
from fasti.errors import FastiError

Found = TypeVar("Found")
Ticket = dict[str, Any]

TIMEOUT_S = 60.0


def patiently(ask: Callable[[], Found], timeout_s: float = TIMEOUT_S) -> Found:
    """What `ask` gives, asked again while its errors may pass; for at most about so long."""
    until = time.monotonic() + timeout_s
    pauses = Pauses(random.random)
    while True:
        try:
            return ask()
        except FastiError as error:
            _pause(error, pauses, until)


def _pause(error: FastiError, pauses: Pauses, until: float) -> None:
    """Waits before the next try; raises the error when there is no time for one."""
    pause_s = pauses.next_s(error)
    if error.code not in PASSING or time.monotonic() + pause_s > until:
        raise error
    time.sleep(pause_s)


def rows_of(
    client_of: Callable[[], Client],
    ticket: Ticket,
    timeout_s: float = TIMEOUT_S,
    shard: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The batches of a ticket of a shard, over lost connections: none is missing and none comes twice.

    Only what can be named can be gone on with: changes by their positions, rows of one partition of
    a log by their offsets. Other reads are begun again as long as nothing has come of them.
    """
    pauses = Pauses(random.random)
    until = time.monotonic() + timeout_s
    left: Ticket | None = ticket
    while left is not None:
        try:
            for batch in client_of().transport.shard(shard).read(dict(left)):
                if batch.num_rows and left is not None:
                    left = _behind(left, batch)
                yield batch
                pauses.well()
                until = time.monotonic() + timeout_s
            return
        except FastiError as error:
            if left is None:
                raise
            _pause(error, pauses, until)
            # A broker that was named may have gone: any of the address knows more.
            left = {name: value for name, value in left.items() if name != LOCATION}


def _behind(ticket: Ticket, batch: pa.RecordBatch) -> Ticket | None:
    """What is left of a ticket after a batch; None if that is not known."""
    if ticket.get("call") == "changes":
        return {**ticket, "after": batch.column("position")[-1].as_py()}
    if ticket.get("call") == "log" and "end_offset" in ticket and "limit" not in ticket:
        return {**ticket, "offset": batch.column("offset")[-1].as_py() + 1}
    return None
