"""Streams of small calls: a request out and its answer in, without opening a call of gRPC for each.

A stream carries one call at a time. Its caller takes it, writes, reads the answer itself and gives it
back, so no thread stands between the caller and the broker, and callers in several threads have a stream
each and never wait for one another. There are `STREAMS_MAX` at most; whoever finds none free and no
more to be opened makes a single call, as does a caller that calls only now and then.

gRPC's reads have no timeout. So one thread looks at the streams while there are any: it cancels a call
whose time is over, and ends a stream that was idle for `IDLE_S`. It is woken for a call only if that ends
before it would look by itself. A stream has a deadline of gRPC's own as well: when this process
vanishes, the broker is rid of it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from fasti.client.transport import Header
from fasti.errors import TimedOut
from fasti.protocol.envelope import pack, parse

if TYPE_CHECKING:
    from fasti.client.waiting_calls import WaitingCall

logger = logging.getLogger("fasti.client")

STREAMS_MAX = 8
IDLE_S = 0.5
# So many calls in a row, each so soon after the one before, and a stream is worth opening.
_STREAK = 3
_SOON_S = 0.1
# A larger request is a single call.
_BYTES_MAX = 256 << 10
# How much longer than one call may take a stream lives.
_LIFE_S = 30.0
# What may take longer is a single call: else a broker would keep a vanished client's stream as long.
_TIMEOUT_S_MAX = 60.0
# A broker that refused a stream is not asked again for so long.
_REFUSED_S = 30.0

_NO_COLUMNS = pa.schema([])
_now = time.monotonic
# A writer and a reader.
Opened = tuple[Any, Any]


class CallStream:
    """One stream, of the thread that took it; `cancel` is for any."""

    def __init__(self, opened: Opened, ends_at: float, age: int) -> None:
        self._writer, self._reader = opened
        self.ends_at, self.age = ends_at, age
        # When the call that is under way has to be answered; infinite while there is none.
        self.until = math.inf
        self.used_at = 0.0
        self.timed_out = False
        self.actions: frozenset[str] = frozenset()

    def greet(self) -> None:
        """Begins, and reads which actions may be called."""
        self._writer.begin(_NO_COLUMNS)
        greeting = self._reader.read_chunk().app_metadata
        self.actions = frozenset(parse(greeting.to_pybytes())["actions"])

    def ask(self, body: bytes) -> pa.Buffer | None:
        """The answer; None if the broker has ended the stream and not read the request."""
        try:
            if self._write(pa.py_buffer(body)):
                with suppress(StopIteration):
                    return self._reader.read_chunk().app_metadata
            # Raises, unless the broker has ended it by its own will: then it was not read.
            self._writer.close()
            return None
        except Exception as error:
            if self.timed_out:
                raise TimedOut("no answer in time") from error
            raise

    def _write(self, body: pa.Buffer) -> bool:
        """Whether the stream took it: not if it has ended, and only `close` tells how."""
        try:
            self._writer.write_metadata(body)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            logger.debug("a stream of calls has ended: %s", error)
            return False
        return True

    def cancel(self) -> None:
        """Ends what is under way: who waits for the answer gets an error."""
        self._reader.cancel()

    def end(self) -> None:
        """Ends it when nothing is under way, and lets go of what gRPC has of it."""
        try:
            self._reader.cancel()
            self._writer.close()
        except Exception as error:
            logger.debug("ending a stream: %s", error)
        # A caller that keeps this stream, by an error, keeps no connection.
        self._writer = self._reader = None

    def in_grpc(self) -> tuple[Any, Any]:
        """What gRPC has of it."""
        return self._writer, self._reader


class CallStreams:
    """Those of one transport. Any thread; `open_stream` opens one that ends after so many seconds."""

    def __init__(self, open_stream: Callable[[float], Opened]) -> None:
        self._open_stream = open_stream
        self._changed = threading.Condition()
        self._idle: list[CallStream] = []
        self._busy: set[CallStream] = set()
        self._opening = self._age = 0
        self._closed = False
        # What may be called, once a broker has told it.
        self._actions: frozenset[str] | None = None
        self._streak, self._called_at = 0, -_SOON_S
        self._refused_until = 0.0
        self._watcher: threading.Thread | None = None
        self._wakes_at = math.inf

    def ask(
        self,
        action: str,
        header: Header,
        parts: Sequence[pa.RecordBatch],
        timeout: float,
        waiting: WaitingCall | None = None,
    ) -> pa.Buffer | None:
        """The answer; None if there is no stream for this call, and it has to be a single one.

        Raises `timed_out`, what gRPC raises, and with `waiting` its error when it is given up.
        """
        stream = self.take(action, timeout, waiting)
        if stream is None:
            return None
        usable = False
        if waiting is not None:
            waiting.ends_by(stream.cancel)
        try:
            body = pack({"action": action, **header}, parts, inline=True)
            small = len(body) <= _BYTES_MAX
            answer = stream.ask(body) if small else None
            usable = answer is not None or not small
            return answer
        except Exception as error:
            if waiting is not None and waiting.is_given_up:
                raise waiting.error() from error
            raise
        finally:
            if waiting is not None:
                waiting.ends_by(None)
                # It may have been cancelled just when the answer was here.
                usable = usable and not waiting.is_given_up
            if usable:
                self.put_back(stream)
            else:
                self.drop(stream)

    def take(
        self, action: str, timeout: float, waiting: WaitingCall | None = None
    ) -> CallStream | None:
        """A stream for one call, to be given to `put_back` or `drop`; None: there is none for it."""
        if timeout > _TIMEOUT_S_MAX:
            return None
        now = _now()
        with self._changed:
            # With the lock: who opens the first stream learns them, and may have put it back by now.
            if self._actions is not None and action not in self._actions:
                return None
            soon = now - self._called_at < _SOON_S
            self._streak, self._called_at = self._streak + 1 if soon else 1, now
            while self._idle:
                stream = self._idle.pop()
                if stream.ends_at - now > timeout:
                    self._begin(stream, now + timeout)
                    return stream
                stream.end()
            if (
                self._closed
                or self._streak < _STREAK
                or now < self._refused_until
                or len(self._busy) + self._opening >= STREAMS_MAX
            ):
                return None
            self._opening += 1
        return self._opened(action, now + timeout, timeout + _LIFE_S, waiting)

    def _opened(
        self, action: str, until: float, life_s: float, waiting: WaitingCall | None
    ) -> CallStream | None:
        """One that is opened for this call, if the broker gives it."""
        stream = self._open(until, life_s)
        if stream is None:
            return None
        if waiting is not None:
            waiting.ends_by(stream.cancel)
        try:
            stream.greet()
        except Exception as error:
            self._note_refusal(error)
        finally:
            if waiting is not None:
                waiting.ends_by(None)
            if not stream.actions:
                self.drop(stream)
        if not stream.actions:
            return None
        if stream.age == self._age:
            self._actions = stream.actions
        if action in stream.actions:
            return stream
        self.put_back(stream)
        return None

    def _open(self, until: float, life_s: float) -> CallStream | None:
        stream, age = None, self._age
        try:
            stream = CallStream(self._open_stream(life_s), _now() + life_s, age)
        except Exception as error:
            self._note_refusal(error)
        finally:
            with self._changed:
                self._opening -= 1
                if stream is not None:
                    self._begin(stream, until)
        return stream

    def _note_refusal(self, error: Exception) -> None:
        """The single call that is made instead tells what is wrong, if anything is."""
        logger.debug("opening a stream of calls: %s", error)
        self._refused_until = _now() + _REFUSED_S

    def _begin(self, stream: CallStream, until: float) -> None:
        """With the lock."""
        stream.until = until
        self._busy.add(stream)
        if self._watcher is None:
            self._wakes_at = until
            self._watcher = threading.Thread(target=self._watch, name="fasti-calls", daemon=True)
            self._watcher.start()
        elif until < self._wakes_at:
            self._changed.notify_all()

    def put_back(self, stream: CallStream) -> None:
        """The call was answered: another may follow."""
        with self._changed:
            self._busy.discard(stream)
            stream.until, stream.used_at = math.inf, _now()
            if stream.age == self._age and not stream.timed_out:
                self._idle.append(stream)
                return
        stream.end()

    def drop(self, stream: CallStream) -> None:
        """The call was not answered: what comes on this stream now is nobody's."""
        with self._changed:
            self._busy.discard(stream)
        stream.end()

    def leave(self) -> None:
        """The connection is lost, or to be left: what is asked next may be another broker."""
        with self._changed:
            while self._idle:
                self._idle.pop().end()
            # Those that carry one end behind it.
            self._age += 1
            self._actions, self._refused_until = None, 0.0
            self._changed.notify_all()

    def close(self) -> None:
        """Ends them for good."""
        self._closed = True
        self.leave()

    def in_grpc(self) -> Iterable[tuple[Any, Any]]:
        """What gRPC has of them."""
        return [stream.in_grpc() for stream in [*self._idle, *self._busy]]

    # The watcher's thread

    def _watch(self) -> None:
        with self._changed:
            while self._idle or self._busy or self._opening:
                now = _now()
                self._look(now)
                untils = [stream.until for stream in self._busy]
                oldest_at = self._idle[0].used_at if self._idle else now
                self._wakes_at = min([oldest_at + IDLE_S, *untils])
                self._changed.wait(max(0.0, self._wakes_at - now))
            self._watcher = None

    def _look(self, now: float) -> None:
        """With the lock."""
        for stream in [stream for stream in self._busy if stream.until <= now]:
            self._busy.remove(stream)
            stream.timed_out = True
            stream.cancel()
        # The one used last is the first to be used again.
        while self._idle and now - self._idle[0].used_at >= IDLE_S:
            self._idle.pop(0).end()
