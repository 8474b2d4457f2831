"""What a benchmark asks of a peer's client, and the payload that it sends.

A client process has one `Client` per thread. Times are UTC microseconds of the machine's clock, which
servers and clients share. A payload of 100 bytes carries a moment and a number, so that lateness is
taken the same way for every peer: by the wall clock, at the first line of user code.

Only the standard library is used here: client processes of peers run in an environment without ours.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# User code: gets a payload, says whether that was enough.
Handler = Callable[[bytes], bool]
# The same for batches: gets the number of messages.
BatchHandler = Callable[[int], bool]

PAYLOAD_BYTES = 100
_HEAD = struct.Struct("<qq")
_FILLING = b"x" * (PAYLOAD_BYTES - _HEAD.size)
_END = -1
# How long a lease lasts; the restart asks for a shorter one, so that it need not wait that long.
LEASE_S = int(os.environ.get("PEERS_LEASE_S", "30"))


class Cannot(Exception):
    """The peer has no such operation; the text says why."""


class Client:
    """A connection to one queue of a server. What a peer lacks raises `Cannot`."""

    # How many connections a producer needs for many single sends a second: more than one where
    # `post` waits for the answer.
    lanes = 4

    def schedule(self, payload: bytes, due_us: int) -> Any:
        """One message; returns when it is acknowledged, with what `cancel` and `move` take."""
        raise NotImplementedError

    def post(self, payload: bytes) -> None:
        """One message that is due now, without waiting for the answer if the client can do that."""
        self.schedule(payload, 0)

    def flush(self) -> None:
        """Waits until everything that was posted is acknowledged."""

    def column(self, payloads: list[bytes]) -> Any:
        """Payloads in the form in which a batch takes them; made before the time is taken."""
        return payloads

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        """Many messages in the peer's best form; returns when all are acknowledged."""
        raise NotImplementedError

    def schedule_stream(self, batches: Iterable[tuple[Any, array[int]]]) -> None:
        """Batches one after another, several under way at a time if the client can do that."""
        for column, dues_us in batches:
            self.schedule_batch(column, dues_us)

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        """Many messages, with what `cancel` and `move` take for each."""
        return [
            self.schedule(payload, due_us)
            for payload, due_us in zip(payloads, dues_us, strict=True)
        ]

    def cancel(self, handle: Any) -> None:
        """One pending message."""
        raise Cannot("no call cancels a pending message")

    def cancel_many(self, handles: Sequence[Any]) -> None:
        """Pending messages, in the peer's best form."""
        for handle in handles:
            self.cancel(handle)

    def move(self, handle: Any, due_us: int) -> None:
        """Another due time for a pending message."""
        raise Cannot("no call moves a pending message")

    def move_many(self, handles: Sequence[Any], due_us: int) -> None:
        """The same for many, in the peer's best form."""
        for handle in handles:
            self.move(handle, due_us)

    def consume(self, handler: Handler, idle_s: float, batch: int = 1) -> None:
        """The peer's usual loop: each message goes to user code and is acknowledged.

        Ends, with everything acknowledged, when user code says so or nothing came for `idle_s`. With
        `batch` up to so many are leased at a time, where the client has no prefetch of its own.
        """
        raise NotImplementedError

    def consume_batches(self, handler: BatchHandler, count: int, idle_s: float) -> None:
        """Leases up to `count` at a time and acknowledges them together, as `consume` ends."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the connection."""


def now_us() -> int:
    """The machine's clock."""
    return time.time_ns() // 1000


def payload(moment_us: int, number: int = 0) -> bytes:
    """100 bytes that carry a moment and a number."""
    return _HEAD.pack(moment_us, number) + _FILLING


def warm_payload() -> bytes:
    """Sent before anything counts, so that both sides have run every path once."""
    return payload(0)


def end_payload(count: int) -> bytes:
    """Says that so many messages were sent before it."""
    return _HEAD.pack(_END, count) + _FILLING


def read(body: bytes) -> tuple[int, int]:
    """The moment and the number of a payload."""
    moment_us, number = _HEAD.unpack_from(body)
    return moment_us, number


def is_warm(moment_us: int) -> bool:
    """Whether this is the moment of a `warm_payload`."""
    return moment_us == 0


def is_end(moment_us: int) -> bool:
    """Whether this is the moment of an `end_payload`."""
    return moment_us == _END
