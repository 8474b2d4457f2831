"""What the broker writes, on its way to a reader that follows: a log, a key-value topic, all changes.

The stream's reading thread puts batches in, as long as there is room; when there is none it waits,
and the wire holds the broker up. One thread takes. The end of a stream comes behind its rows, so
the next one is opened exactly where this one ended.

Where a broker has several shards there is a stream for each (`Followings`): what comes is taken in
turn, and one that was lost is opened again while the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition

import pyarrow as pa

from fasti.client import forking
from fasti.client.pauses import Pauses
from fasti.client.transport import Content, Header, Stream, Transport
from fasti.errors import Closed, FastiError
from fasti.protocol.problems import error_from_json

_BYTES_MAX = 16 << 20
# Of each of several, at least.
_BYTES_LEAST = 1 << 20


# What the broker said, and the rows that came with it.
Arrived = tuple[Header, pa.RecordBatch | None]
# From where the n-th stream is to be opened.
Place = Callable[[int], Header]


class Following:
    """What one reader has with a shard: a stream at a time."""

    def __init__(
        self,
        transport: Transport,
        changed: Condition | None = None,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        self._transport = transport
        self._monotonic = transport.runtime.monotonic
        self._changed = transport.runtime.condition() if changed is None else changed
        self._bytes_max = bytes_max
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

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._arrived)

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

    def share(self, changed: Condition) -> None:
        """Uses a condition together with others. Only where nothing waits for the one before."""
        self._changed = changed

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
        return self._bytes < self._bytes_max or number != self._number or self.closed

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

    def pause_s(self, error: FastiError) -> float:
        """How long to wait before the next try: longer each time."""
        return self._pauses.next_s(error)

    def pause(self, error: FastiError, until: float | None) -> bool:
        """Waits before the next try, longer each time; False when the time is up, or it is closed."""
        pause = self.pause_s(error)
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


class Followings:
    """What one reader has with all shards that it reads from: a stream of each.

    Whoever takes says by `place(n)` from where the stream of the n-th is to be opened, when it has
    none: it is not kept, so that a reader that is thrown away ends. One thread takes; `close` is for any.
    """

    def __init__(self, transports: Sequence[Transport]) -> None:
        runtime = transports[0].runtime
        self._monotonic, self._new_condition = runtime.monotonic, runtime.condition
        self._changed = self._new_condition()
        room = max(_BYTES_MAX // len(transports), _BYTES_LEAST)
        self._lanes = [Following(transport, self._changed, room) for transport in transports]
        # Those that are opened; where it is one, there is nothing to wait for but it.
        self._numbers: Sequence[int] = range(len(transports))
        self._only = self._lanes[0] if len(transports) == 1 else None
        # When a stream that was lost may be opened again.
        self._again_at = [0.0] * len(transports)
        self._turn = 0
        # Behind those of the streams: they share one condition.
        forking.register(self)

    def keep_to(self, numbers: Sequence[int]) -> None:
        """Has only these opened, at least one. Before anything is taken."""
        self._numbers = numbers
        self._only = self._lanes[numbers[0]] if len(numbers) == 1 else None

    @property
    def closed(self) -> bool:
        """Whether nothing more is given."""
        return self._lanes[0].closed

    def deadline(self, seconds: float | None) -> float | None:
        """The moment so many seconds from now, for `take` and `pause`; None: never."""
        return self._lanes[0].deadline(seconds)

    def begin(self, place: Place) -> None:
        """Opens all streams at once. Raises what refused one; `take` opens them, too."""
        for number in self._numbers:
            if not self._lanes[number].open:
                self._lanes[number].begin(place(number))

    def take(self, until: float | None, place: Place) -> tuple[int, Arrived | FastiError] | None:
        """What came next, and of which; or why there is no more of it.

        None at `until` (monotonic), or when closed. After an error say by `pause` that it is to go on.
        """
        if self._only is not None:
            number = self._numbers[0]
            if not self._only.open and (error := self._opened(number, place)) is not None:
                return number, error
            item = self._only.take(until)
            return None if item is None else (number, item)
        while not self.closed:
            now = self._monotonic()
            for number in self._numbers:
                if self._is_lost(number) and self._again_at[number] <= now:
                    error = self._opened(number, place)
                    if error is not None:
                        return number, error
            number = self._wait(until)
            if number >= 0:
                item = self._lanes[number].take(self._monotonic())
                if item is not None:
                    return number, item
            elif until is not None and self._monotonic() >= until:
                return None
        return None

    def _opened(self, number: int, place: Place) -> FastiError | None:
        """Opens a stream; what refused it."""
        try:
            self._lanes[number].begin(place(number))
            return None
        except FastiError as error:
            self._lanes[number].end()
            return error

    def _wait(self, until: float | None) -> int:
        """Until something is here, or one is to be opened; whose turn it is, or -1."""
        ends = [self._again_at[number] for number in self._numbers if self._is_lost(number)]
        ends += [] if until is None else [until]
        with self._changed:
            left = min(ends) - self._monotonic() if ends else None
            self._changed.wait_for(
                lambda: self.closed or any(lane.waiting for lane in self._lanes), left
            )
            count = len(self._lanes)
            for step in range(count):
                number = (self._turn + step) % count
                if self._lanes[number].waiting:
                    self._turn = number + 1
                    return number
        return -1

    def _is_lost(self, number: int) -> bool:
        """Whether it has no stream, and nothing more of the one before."""
        lane = self._lanes[number]
        return not lane.open and not lane.waiting

    def pause(self, number: int, error: FastiError, until: float | None) -> bool:
        """Puts the next try of one off, longer each time; False when the time is up, or it is closed.

        The only one is waited for here; of several the others go on meanwhile.
        """
        if self._only is not None:
            return self._only.pause(error, until)
        now = self._monotonic()
        self._again_at[number] = now + self._lanes[number].pause_s(error)
        return not self.closed and (until is None or now < until)

    def wait(self, number: int, error: FastiError, until: float | None) -> bool:
        """Waits for one before its next try, for a reader that has nothing else to do; as `pause`."""
        return self._lanes[number].pause(error, until)

    def end(self, number: int) -> None:
        """Lets one stream go, and what came of it and was not taken."""
        self._lanes[number].end()

    def close(self) -> None:
        """Ends all for good; `take` gives nothing more."""
        for lane in self._lanes:
            lane.closed = True
        for lane in self._lanes:
            lane.close()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        return []

    def _forked(self) -> None:
        self._changed = self._new_condition()
        for lane in self._lanes:
            lane.share(self._changed)


def _size(item: Arrived) -> int:
    return item[1].nbytes if item[1] is not None else 0
