"""Consumers: messages at their moments, one by one or in batches.

A consumer is iterated by one thread; its messages may be finished by any.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress

import numpy as np

from fasti.client.batch import Batch
from fasti.client.closing import Closing
from fasti.client.durations import Duration, optional_duration_us, seconds
from fasti.client.failures import FailureReports, Failures, OnFailure
from fasti.client.machines.returns import Segment
from fasti.client.message import Message
from fasti.client.session import Session
from fasti.client.sessions import Sessions
from fasti.client.transport import Transport
from fasti.errors import Closed, FastiError, InvalidArgument
from fasti.model import Limits


def unique_name() -> str:
    """A consumer's name that no other one has."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{os.urandom(4).hex()}"


def checked_group(group: str | None) -> str:
    """A group's name; empty for none."""
    if group is not None and not group:
        raise InvalidArgument("a group's name must not be empty", field="group")
    return group or ""


def check_prefetch(prefetch: int | None) -> None:
    """None has it adapt itself. Raises `invalid_argument`."""
    if prefetch is not None and prefetch < 1:
        raise InvalidArgument("prefetch must be at least 1", field="prefetch", limit=1)


class Consumer(Closing):
    """Made by `client.consumer(topic)`. Iterate over it, or over `batches(...)`.

        with client.consumer("emails", name="worker-1") as consumer:
            for message in consumer:
                handle(message.payload)
                message.ack()

    No message is handed over before it is due on the broker's clock. When the connection is lost the
    consumer connects again by itself, under its name; messages in your hands keep their leases.
    Iterating raises `fenced` when another session took the name, `not_found` when the topic is gone.
    An ack that failed stops nothing: `failed` counts those, `unread_failures` the ones that were not
    waited for, which are logged, given to `on_failure` and raised by `flush` or `close`.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        name: str | None = None,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        limits: Limits | None = None,
        group: str | None = None,
        on_failure: OnFailure | None = None,
        reports: FailureReports | None = None,
    ) -> None:
        check_prefetch(prefetch)
        self.topic = topic
        self.name = name or unique_name()
        self.group = checked_group(group)
        self._timeout_s = seconds(timeout, "timeout")
        self._closed = False
        self._iterator: Generator[Message, None, None] | None = None
        make = Session if transport.shard_count == 1 else Sessions
        self._session: Session | Sessions = make(
            transport,
            topic,
            self.name,
            prefetch=prefetch,
            time_limit_us=optional_duration_us(time_limit, "time_limit"),
            limits=limits or Limits(),
            group=self.group,
            failures=Failures(topic, on_failure, reports),
        )
        # A consumer that is thrown away must not go on taking messages.
        self._gone = weakref.finalize(self, self._session.close_aside)
        self._gone.atexit = False

    @property
    def session(self) -> Session | Sessions:
        """What lies beneath; the client closes it if it is still open."""
        return self._session

    @property
    def failed(self) -> int:
        """How many acks and other returns came out otherwise than asked."""
        return self._session.failures.count

    @property
    def unread_failures(self) -> int:
        """How many of those were not waited for."""
        return self._session.failures.unread

    @property
    def reconnections(self) -> int:
        """How often the connection was lost."""
        return sum(machine.reconnections for machine in self._session.machines)

    def __iter__(self) -> Iterator[Message]:
        self._begin()
        self._end_iterator()
        return self._messages()

    def __next__(self) -> Message:
        if self._iterator is None:
            self._begin()
            self._iterator = self._messages()
        try:
            return next(self._iterator)
        except (StopIteration, FastiError):
            self._iterator = None
            raise

    def _begin(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self.topic!r} is closed")
        self._session.start()

    def _end_iterator(self) -> None:
        """What `next` has opened and not handed over goes to the next one that takes."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            # Not if another thread is in it.
            with suppress(ValueError):
                iterator.close()

    def _until(self) -> float | None:
        return (
            None if self._timeout_s is None else self._session.taking.monotonic() + self._timeout_s
        )

    def _messages(self) -> Generator[Message, None, None]:
        session = self._session
        taking = session.taking
        while True:
            run = taking.await_run(self._until())
            if run is None:
                return
            try:
                for row in session.holding.take_each(
                    run, session.lock, session.clock, session.wake
                ):
                    yield Message(run, row)
            finally:
                taking.put_back(run)

    def take(self, count: int = 1, *, timeout: Duration | None = None) -> list[Message]:
        """Up to `count` messages that are due, as soon as there is one: for those who feed workers.

        None after `timeout` (default: the consumer's), after `stop` and after `close`. One thread at
        a time. Raises what iterating raises.
        """
        self._session.want(count)
        self._begin()
        self._end_iterator()
        until = (
            self._until()
            if timeout is None
            else self._session.taking.monotonic() + (seconds(timeout) or 0.0)
        )
        segments = self._gather(count, 0.0, until)
        return [Message(run, row) for run, rows in segments for row in rows.tolist()]

    def take_now(self) -> Message | None:
        """The next message if it is due and here; None does not mean the end. Any thread may call.

        For the threads of an app, which only wait, by `take`, when this has nothing. Raises nothing.
        """
        session = self._session
        taken = session.holding.take_now(session.lock, session.clock, session.wake)
        return None if taken is None else Message(*taken)

    def stop(self) -> None:
        """Ends the iteration and gives back what was not started. Any thread may call it.

        Messages in your hands keep their leases, and these are renewed, until `close`.
        """
        self._session.drain()

    def batches(self, count: int = 1000, *, wait: Duration = "100ms") -> Iterator[Batch]:
        """Batches of up to `count` messages that are due, each at most `wait` after its first.

        While one is worked on, the next may come, if they are worked on quickly; with a `prefetch`
        at least four times `count` may be here unfinished.

            for batch in client.consumer("emails").batches(10_000):
                store(batch.table)
                batch.ack()
        """
        if count < 1:
            raise InvalidArgument("count must be at least 1", field="count", limit=1)
        wait_s = seconds(wait, "wait") or 0.0
        self._session.want(count, batches=True)
        self._begin()
        return self._batches(count, wait_s)

    def _batches(self, count: int, wait_s: float) -> Generator[Batch, None, None]:
        while True:
            segments = self._gather(count, wait_s, self._until())
            if not segments:
                return
            yield Batch(segments)

    def _gather(self, count: int, wait_s: float, until: float | None) -> list[Segment]:
        """Rows that are due, for as long as a batch may wait for more."""
        taking = self._session.taking
        segments: list[Segment] = []
        taken = 0
        while taken < count:
            try:
                run = taking.await_run(until)
            except FastiError:
                if not segments:
                    raise
                break  # What was taken is handed over first; the next call raises.
            if run is None:
                break
            begin, end = taking.take_due(run, count - taken)
            taking.put_back(run)
            if end > begin:
                if not segments:
                    until = self._session.taking.monotonic() + wait_s
                segments.append((run, np.arange(begin, end)))
                taken += end - begin
        return segments

    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until all acks so far are answered. Raises `timed_out`, `rows_failed`."""
        self._session.flush(seconds(timeout))
        self._session.failures.throw()

    def close(self, timeout: Duration | None = "30s") -> None:
        """Waits for acks, gives back what was not started, ends the iteration.

        Raises `rows_failed` for acks that failed, `timed_out`. Messages in your hands stay leased
        until they are finished, which still works, or until their leases end.
        """
        if self._closed:
            return
        self._closed = True
        self._session.close(seconds(timeout))
        self._session.failures.throw()

    def __repr__(self) -> str:
        of_group = f", group {self.group!r}" if self.group else ""
        return f"<Consumer {self.name!r} of {self.topic!r}{of_group}>"
