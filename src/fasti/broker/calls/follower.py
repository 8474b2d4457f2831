"""What everybody who follows has in common: a stream that the broker writes and the other side ends.

The session holds no credit: what the reader doesn't take, the wire holds up, and `next` is not called
until there is room. When nothing came for a while it says `idle`, so that both sides notice when the
other is gone.

One thread calls `next`, another `take` and `finish`; `stop` and `close` are for any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.errors import FastiError, InvalidArgument
from fasti.protocol.problems import error_to_json

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard

Header = dict[str, Any]
Written = tuple[Header, pa.RecordBatch | None]

IDLE_S = 5.0


class Follower:
    """The end of a reader that follows. A subclass says what is written, how to wake it, and what to leave."""

    # The call of the protocol that opens it.
    call: str

    def __init__(self, service: Service, caller: Caller, shard: Shard) -> None:
        self.service, self.caller, self.shard = service, caller, shard
        self._engine = shard.engine
        self.ended = False
        self._left = False
        self._lock = threading.Lock()
        self._error: FastiError | None = None
        self._written = self._write()

    # For those below

    def pages(self) -> Iterator[Written]:
        """Everything that is written, until `ended`. Waits for it."""
        raise NotImplementedError

    def wake(self) -> None:
        """Has `pages` look up from its waiting."""
        raise NotImplementedError

    def leave(self) -> None:
        """The reader has gone: called once."""
        raise NotImplementedError

    def said(self, **header: Any) -> Header:
        """A header with the time."""
        header.update(self.service.clock.told())
        return header

    def is_over(self) -> bool:
        """Whether nothing more is wanted."""
        return self.ended

    # The thread that reads from the wire

    def take(self, metadata: Header, batch: pa.RecordBatch | None) -> None:
        """A follower has nothing to say."""
        self.stop(InvalidArgument("a follower writes nothing but its end", field="op"))

    def finish(self) -> None:
        """The reader wants no more."""
        self._end()

    # Any thread

    def stop(self, error: FastiError) -> None:
        """The broker ends it, with a reason."""
        self._error = error
        self._end()

    def close(self) -> None:
        """The wire is gone, or done."""
        self._end()
        with self._lock:
            left, self._left = self._left, True
        if not left:
            self.leave()

    def _end(self) -> None:
        self.ended = True
        self.wake()

    # The thread that writes to the wire

    def next(self) -> Written | None:
        """What to write next, when there is something; None when it is over."""
        return next(self._written, None)

    def _write(self) -> Iterator[Written]:
        try:
            yield from self.pages()
        except FastiError as error:
            self._error = error
        except Exception as error:
            # Told, because a stream that says nothing more would be waited for for ever.
            self._error = self.service.failed("follow", error, self.shard, self._engine)
        if self._error is not None:
            yield self.said(kind="error", request=None, error=error_to_json(self._error)), None
