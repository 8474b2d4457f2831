"""Open Flight calls: a produce stream and a consumer session.

Each has one thread that reads and calls back. Writing is for one thread at a time, because two at
once abort the process in gRPC; a lock sees to it, the clean end of the call included. A write may
wait for as long as the broker takes nothing, so the thread that ends the call doesn't wait for it: the
write ends the call behind it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from fasti.client.flight_errors import fasti_error
from fasti.client.transport import Arrived, Content, Ended, Header
from fasti.errors import FastiError, Unavailable
from fasti.protocol.envelope import dump, join_row, parse, split_row

logger = logging.getLogger("fasti.client")


class FlightStream:
    """What both kinds of call share. `ended` is called by the reading thread, at its end, and before
    that perhaps by `abandon`; the second call says nothing new.
    """

    def __init__(self, writer: Any, reader: Any, ended: Ended) -> None:
        self._writer = writer
        self._reader = reader
        self._ended = ended
        self._lock = threading.Lock()
        self._finishing = self._finished = self._over = self._cancelled = False
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        """Begins to read."""
        self._thread = threading.Thread(target=self._run, name=f"fasti-{name}", daemon=True)
        self._thread.start()

    def in_grpc(self) -> tuple[Any, Any]:
        """What gRPC has of it, while it is open."""
        return self._writer, self._reader

    def join(self, seconds: float) -> None:
        """Waits until the reading thread has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def send(self, metadata: Header, content: Content = None) -> None:
        """Writes. Raises `unavailable` when the call is over or its connection lost."""
        batch = None
        if type(content) is bytes:
            body = pa.py_buffer(join_row(metadata, content))
        else:
            body, batch = pa.py_buffer(dump(metadata)), content
        try:
            with self._lock:
                if self._over or self._finishing:
                    raise Unavailable("the connection was lost")
                try:
                    if batch is None:
                        self._writer.write_metadata(body)
                    else:
                        self._writer.write_with_metadata(batch, body)
                except Exception as error:
                    raise fasti_error(error) from error
        finally:
            if self._finishing:
                self.finish()

    def finish(self) -> None:
        """No more will be written; what was is still answered. Doesn't wait."""
        self._finishing = True
        if not self._lock.acquire(blocking=False):
            return  # The thread that has it does the rest.
        try:
            if self._over or self._finished:
                return
            self._finished = True
            self._writer.done_writing()
        except Exception as error:
            logger.debug("ending a stream: %s", error)
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """Ends the call at once."""
        self._cancelled = True
        self.finish()

    def abandon(self) -> None:
        """Nothing comes any more: tells so at once, whenever gRPC notices. Any thread."""
        self._ended(Unavailable("the broker is silent: the network may be gone"))
        self.cancel()

    def _run(self) -> None:
        failure: FastiError | None = None
        try:
            self._read()
        except Exception as error:
            failure = fasti_error(error)
        with self._lock:
            self._over = True
            try:
                # Only this tells how the call ended.
                self._writer.close()
            except Exception as error:
                failure = failure or fasti_error(error)
            # A caller that keeps this stream keeps no connection.
            self._writer = self._reader = None
        if failure is None and not self._finished:
            failure = Unavailable("the broker ended the stream")
        self._ended(None if self._cancelled else failure)

    def _read(self) -> None:
        raise NotImplementedError


class ProduceStream(FlightStream):
    """Batches out, receipts in."""

    def __init__(
        self, writer: Any, reader: Any, receipt: Callable[[Header], None], ended: Ended
    ) -> None:
        super().__init__(writer, reader, ended)
        self._receipt = receipt

    def _read(self) -> None:
        while (body := self._reader.read()) is not None:
            self._receipt(parse(body.to_pybytes()))


class ConsumeStream(FlightStream):
    """Credits and returns out, leased messages and answers in."""

    def __init__(
        self,
        writer: Any,
        reader: Any,
        arrived: Arrived,
        ended: Ended,
    ) -> None:
        super().__init__(writer, reader, ended)
        self._arrived = arrived

    def cancel(self) -> None:
        """Ends the call at once, on both sides."""
        self._cancelled = True
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def _read(self) -> None:
        while True:
            try:
                chunk: flight.FlightStreamChunk = self._reader.read_chunk()
            except StopIteration:
                return
            if not chunk.app_metadata:
                self._arrived({}, chunk.data)
                continue
            text, payload = split_row(chunk.app_metadata.to_pybytes())
            self._arrived(parse(text), chunk.data if payload is None else payload)
