"""What the broker writes, on its way to a reader that follows: a log, a key-value topic, all changes.

The stream's reading thread puts batches in, as long as there is room; when there is none it waits,
and the wire holds the broker up. One thread takes. The end of a stream comes behind its rows, so
the next one is opened exactly where this one ended.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import pyarrow as pa

from fasti.client import forking
from fasti.client.pauses import Pauses
from fasti.client.transport import Content, Header, Stream, Transport
from fasti.errors import Closed, FastiError
from fasti.protocol.problems import error_from_json

_BYTES_MAX = 16 << 20


# What the broker said, and the rows that came with it.
Arrived = tuple[Header, pa.RecordBatch | None]


class Following:
    """What one reader has with the broker: a stream at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._monotonic = transport.runtime.monotonic
        self._changed = transport.runtime.condition()
        self._arrived: deque[Arrived | FastiError] = deque()
        self._bytes = 0
        self._stream: Stream | None = None
        self._number = 0
        self._pauses = Pauses(transport.runtime.random)
        self.closed = False
        forking.register(self)

    @property
    def open(self) -> bool:
        """Whether there is a stream whose end has not been taken."""
        return self._stream is not None

    def deadline(self, seconds: float | None) -> float | None:
        """The moment so many seconds from now, for `take` and `pause`; None: never."""
        return None if seconds is None else self._monotonic() + seconds

    def begin(self, descriptor: Header) -> None:
        """Opens a stream from where the descriptor says. Raises what refused it."""
        with self._changed:
            self._number += 1
            number = self._number
            self._arrived.clear()
            self._bytes = 0
        stream = self._transport.consume(
            descriptor,
            lambda header, batch: self._take_in(number, header, batch),
            lambda error: self._put(number, error or Closed("the broker ended the stream")),
        )
        with self._changed:
            self._stream = stream
            closed = self.closed
        if closed:
            stream.cancel()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """None: nothing of what is there is used after one."""
        return []

    def _forked(self) -> None:
        """In a child process, which reads on from here by a stream of its own."""
        self._changed = self._transport.runtime.condition()
        self._number += 1
        self._arrived.clear()
        self._bytes = 0
        if self._stream is not None:
            self._stream = None
            self._arrived.append(Closed("the process was forked"))

    # The stream's reading thread

    def _take_in(self, number: int, header: Header, batch: Content) -> None:
        assert type(batch) is not bytes, "only a consumer's messages come alone"
        if header.get("kind") == "error":
            self._put(number, error_from_json(header["error"]))
        else:
            self._put(number, (header, batch))

    def _put(self, number: int, item: Arrived | FastiError) -> None:
        with self._changed:
            if not isinstance(item, FastiError):
                self._changed.wait_for(lambda: self._has_room(number))
            # What comes of a stream that was let go takes no room from the next one.
            if number == self._number and not self.closed:
                if not isinstance(item, FastiError):
                    self._bytes += _size(item)
                self._arrived.append(item)
                self._changed.notify_all()

    def _has_room(self, number: int) -> bool:
        return self._bytes < _BYTES_MAX or number != self._number or self.closed

    # The thread that reads

    def take(self, until: float | None) -> Arrived | FastiError | None:
        """The next that came, or why there are no more; None at `until` (monotonic) or when closed."""
        with self._changed:
            left = None if until is None else until - self._monotonic()
            self._changed.wait_for(lambda: self._arrived or self.closed, left)
            if self.closed or not self._arrived:
                return None
            item = self._arrived.popleft()
            if not isinstance(item, FastiError):
                self._bytes -= _size(item)
                self._pauses.well()
                self._changed.notify_all()
                return item
        self.end()
        return item

    def pause(self, error: FastiError, until: float | None) -> bool:
        """Waits before the next try, longer each time; False when the time is up, or it is closed."""
        pause = self._pauses.next_s(error)
        with self._changed:
            if until is not None:
                pause = min(pause, max(0.0, until - self._monotonic()))
            self._changed.wait_for(lambda: self.closed, pause)
        return not self.closed and (until is None or self._monotonic() < until)

    # Any thread

    def end(self) -> None:
        """Lets the stream go, and all that came and was not taken."""
        with self._changed:
            stream, self._stream = self._stream, None
            self._number += 1
            self._arrived.clear()
            self._bytes = 0
            self._changed.notify_all()
        if stream is not None:
            with suppress(FastiError):
                stream.cancel()

    def close(self) -> None:
        """Ends it for good; `take` gives nothing more."""
        self.closed = True
        self.end()


def _size(item: Arrived) -> int:
    return item[1].nbytes if item[1] is not None else 0
