"""The threads around a `ProducerMachine`: they gather, connect, write and settle.

Callers add with `lock`; one sending thread writes and connects; the stream's reading thread brings
receipts. The sending thread ends when there was nothing to do for a while. A caller that sends a little
while nothing is under way writes by itself, on the stream that is open: no thread has to be woken for it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from fasti.client import forking
from fasti.client.failures import Failures
from fasti.client.machines.producer import ProducerMachine, Step
from fasti.client.machines.run import prepare
from fasti.client.outcomes import Outcomes
from fasti.client.receipts import Shipment
from fasti.client.transport import Header, Stream, Transport
from fasti.errors import Closed, FastiError, Overloaded, TimedOut, Unavailable
from fasti.protocol.problems import error_from_json
from fasti.runtime import ENDED, Thread, may_be_interrupted

logger = logging.getLogger("fasti.client")

_LAST_WORD_S = 1.0
# What a caller writes by itself, at most: more might have to wait until the broker reads, and `send` is
# to return at once.
_LEAD_BYTES_MAX = 16 << 10
# So often the sending thread looks whether a caller still writes: one that was interrupted, and again
# while it said so, has told nobody.
_LOOK_S = 1.0
_Failed = list[tuple[Shipment, FastiError]]


class Outbox:
    """What one producer has on its way to one topic."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str,
        *,
        max_block_s: float,
        deadline_s: float,
        rows_max: int,
        bytes_max: int,
        failures: Failures | None = None,
    ) -> None:
        # Here and not with the first send, which would take as long as a hundred others, nor in the
        # sending thread: an interpreter that is ending imports nothing more, and what a program sent last
        # would be lost.
        prepare()
        self._transport, self._runtime = transport, transport.runtime
        self._monotonic = self._runtime.monotonic
        self.topic, self._owner = topic, owner
        self._max_block_s = max_block_s
        self.failures = failures or Failures(topic)
        self.lock = threading.Lock()
        self.machine: ProducerMachine[Shipment] = ProducerMachine(
            lambda on_conflict, partition: Shipment(
                on_conflict, self.failures, partition, transport.timeout_s
            ),
            lambda: uuid.uuid4().hex,
            self._runtime.random,
            deadline_s=deadline_s,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        self._work = self._runtime.condition(self.lock)
        self._room = self._runtime.condition(self.lock)
        # Whether the sending thread waits, and until when; what a caller does in its place, and whether
        # it is to look for more afterwards.
        self._sleeping = False
        self._sleeps_until = 0.0
        self.led: Step[Shipment] | None = None
        self._wanted = False
        # Whether callers may write: not where a write that waits would hold up others.
        self.leads = self._runtime.leads
        self._thread: Thread | None = None
        self._stream: Stream | None = None
        # The number of the last stream that was, or could not be, opened.
        self._opening = 0
        # Streams to be ended, and whether the broker is told on them that the producer is over.
        self._abandoned: list[tuple[Stream, bool]] = []
        # Called without the lock, by whichever thread brought the answer, after each shipment's.
        self.on_settled: Callable[[Shipment], None] | None = None
        # Asked before a shipment fails: True if it goes another way, and is settled there.
        self.on_refused: Callable[[Shipment, FastiError], bool] | None = None
        # Those of the same producer to other shards, and how many callers wait here for room.
        self._peers: list[Outbox] = []
        self._waiting_for_room = 0
        forking.register(self)

    # Callers, with the lock

    def begin(self, on_conflict: str, partition: int | None = None) -> Shipment:
        """A shipment for single sends; what was gathered before goes on its way.

        Waits while the buffer is full. Raises `overloaded` after `max_block`, `closed`.
        """
        if self.machine.open is not None:
            self.seal()
        self._await_room()
        shipment = self.machine.gather(on_conflict, partition, self._monotonic())
        if self._thread is None:
            self._start()
        return shipment

    def seal(self) -> None:
        """What was gathered so far goes as a batch of its own."""
        self.machine.seal()
        self.wake()

    def add(
        self,
        batch: pa.RecordBatch,
        on_conflict: str,
        atomic: bool,
        stage: str,
        partition: int | None = None,
    ) -> Shipment:
        """A batch behind everything that was sent before."""
        self.seal()
        self._await_room()
        shipment = self.machine.add(batch, on_conflict, partition, self._monotonic())
        shipment.atomic, shipment.stage = atomic, stage
        self._start()
        return shipment

    def wake(self) -> None:
        """There is something for the sending thread to look at."""
        machine = self.machine
        machine.idle = False
        if self._stream is not None and not machine.connected:
            self._abandoned.append((self._stream, machine.last_word))
            self._stream, machine.last_word = None, False
            # One may wait for the end of a stream on which a write failed: the sending thread, or a
            # caller that writes, beside it.
            self._work.notify_all()
        elif self._sleeping:
            self._work.notify_all()

    def begin_to_lead(self) -> Step[Shipment] | None:
        """What the caller is to do in the sending thread's place, by `lead`; None: that one is woken.

        One that doesn't come to `lead`, or not to its end, says so by `interrupted`.
        """
        machine, gathered = self.machine, self.machine.open
        may = self.leads and self._sleeping and self.led is None and self._stream is not None
        if not may or gathered is None or gathered.size_bytes > _LEAD_BYTES_MAX:
            self.wake()
            return None
        if not self._transport.on_network and may_be_interrupted():
            # The broker is in this process, and would not survive an interrupt everywhere.
            self.wake()
            return None
        try:
            step = machine.poll(self._monotonic())
            # What can't be written at once is found again by the sending thread.
            unwritable = step.action == "write" and not machine.connected
            if step.action in ("wait", "end") or unwritable:
                self.wake()
                return None
            machine.idle = False
            self.led = step
            return step
        except BaseException:
            self.led = None
            machine.take_back(gathered)
            self.wake()
            raise

    def _start(self) -> None:
        if self._thread is None:
            self._thread = self._runtime.thread(
                f"fasti-send-{self.topic}", self._run, self._turn, self._work
            )
            self._thread.start()
        self.wake()

    def share_with(self, peers: list[Outbox]) -> None:
        """Has the limits of the buffer be for this one and those together. Called before it is used."""
        for peer in peers:
            self._peers.append(peer)
            self.machine.peers.append(peer.machine)
            peer._peers.append(self)
            peer.machine.peers.append(self.machine)

    def _await_room(self) -> None:
        if self.machine.closed or not self.machine.has_room:
            # First, then it looks again: who makes room elsewhere looks at this after it has made it.
            self._waiting_for_room += 1
            try:
                self._wait_for_room()
            finally:
                self._waiting_for_room -= 1

    def _wait_for_room(self) -> None:
        machine = self.machine
        until: float | None = None
        while True:
            if machine.closed:
                raise Closed(f"the producer of {self.topic!r} is closed")
            if machine.has_room:
                return
            now = self._monotonic()
            until = until or now + self._max_block_s
            if now >= until:
                raise Overloaded(
                    f"{machine.rows} messages of {self.topic!r} have no receipt yet, and none "
                    f"came in {self._max_block_s} s ({machine.trouble or 'the broker is slow'})",
                    retry_after_us=100_000,
                    details={"rows": machine.rows, "bytes": machine.size_bytes},
                )
            self._room.wait(until - now)

    # Callers, without the lock

    def lead(self, step: Step[Shipment]) -> None:
        """Does what `begin_to_lead` gave."""
        self._fail(step.failed)
        if step.parcel is not None:
            self._carry_out(step.parcel, self.machine.stream_number, opens=False)
        with self.lock:
            self.led = None
            late = step.parcel is not None and step.parcel.deadline < self._sleeps_until
            if self._wanted or late:
                self._wanted = False
                self._work.notify_all()

    def interrupted(self) -> None:
        """A signal's handler raised in a caller that led, in the middle of a write perhaps: what it
        was to write is sent again, by the sending thread. The caller has set `led` back.
        """
        with self.lock:
            number, self._wanted = self.machine.stream_number, False
            self._work.notify_all()
        self._broken(number, Unavailable("the caller was interrupted while it was sending"))

    @property
    def settled(self) -> bool:
        """Whether nothing is gathered or under way."""
        return self.machine.open is None and self.machine.answered(self.machine.made)

    @property
    def over(self) -> bool:
        """Whether its thread has ended too: it has said goodbye to the broker."""
        return self._thread is None and self.settled

    def flush(self, timeout: float | None) -> None:
        """Waits until everything sent before has its receipt. Raises `timed_out`."""
        with self.lock:
            mark = self.machine.mark()
            self.wake()
        self.await_answers(mark, timeout)

    def await_answers(self, mark: int, timeout: float | None) -> None:
        """Waits until everything before the mark has its receipt. Raises `timed_out`."""
        with self.lock:
            done = self._room.wait_for(lambda: self.machine.answered(mark), timeout)
        if not done:
            raise TimedOut(f"not everything sent to {self.topic!r} was answered in {timeout} s")

    def close(self) -> None:
        """Takes nothing more. What has no receipt yet fails as `closed`."""
        with self.lock:
            left = self.machine.close()
            self.wake()
        error = Closed("the producer was closed before the receipt came")
        self._fail([(shipment, error) for shipment in left])
        self._finish_abandoned()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """What is gathered is whole when it is not held."""
        return [self.lock]

    def _forked(self) -> None:
        """In a child process: what is on its way is the parent's, and so is its name."""
        for shipment in self.machine.begin_anew():
            shipment.leave_to_parent()
        # With those that waited for the old ones are gone.
        self._work = self._runtime.condition(self.lock)
        self._room = self._runtime.condition(self.lock)
        self._sleeping = self._wanted = False
        self._waiting_for_room = 0
        self._thread = self._stream = self.led = None
        self._abandoned = []

    # The sending thread

    def _run(self) -> None:
        while self._turn(wait=True) != ENDED:
            pass

    def _turn(self, wait: bool = False) -> float | None:
        """One step of the machine's; or how long until there is one, for which it may wait."""
        with self.lock:
            while self.led is not None:
                self._wanted = True
                self._work.wait(_LOOK_S)
            now = self._monotonic()
            step = self.machine.poll(now)
            self._sleeping = step.action == "wait"
            if self._sleeping:
                if wait:
                    self._sleeps_until = now + step.wait_s
                    self._work.wait(step.wait_s)
                    self._sleeping = False
                return step.wait_s
            self.wake()
            number = self.machine.stream_number
            if step.action == "end":
                self._thread = None
        self._fail(step.failed)
        if step.parcel is not None:
            self._carry_out(step.parcel, number)
        self._finish_abandoned()
        return ENDED if step.action == "end" else 0.0

    def _carry_out(self, shipment: Shipment, number: int, opens: bool = True) -> None:
        try:
            self._write(shipment, opens)
        except FastiError as error:
            self._broken(max(number, self._opening), error)
        except Exception as error:  # The thread must live; the batch can't be sent.
            logger.exception("sending to %r", self.topic)
            with self.lock:
                problem = FastiError(f"{type(error).__name__}: {error}")
                failed = self.machine.fail(shipment, problem, self._monotonic())
                self.wake()
            self._fail(failed)

    def _write(self, shipment: Shipment, opens: bool) -> None:
        row = shipment.row()
        if row is None:
            shipment.seal()
        with self.lock:
            stream, number = self._stream, self.machine.stream_number
            schema = self.machine.schema
        if stream is None or schema is None:
            if not opens:
                # It was lost a moment ago, which has woken the sending thread.
                return
            stream, number, schema = self._open(shipment.names)
        with self.lock:
            header = self.machine.write(shipment) if self._stream is stream else None
        if header is None:
            return
        try:
            if row is not None:
                columns, payload = row
                stream.send({**header, "row": columns}, payload)
            else:
                stream.send(header, _widened(shipment.seal(), schema))
        except FastiError:
            # The end of the stream says more than the write that met it.
            with self.lock:
                if self._work.wait_for(lambda: number != self.machine.stream_number, _LAST_WORD_S):
                    return
            raise

    def _open(self, columns: list[str]) -> tuple[Stream, int, pa.Schema]:
        with self.lock:
            number, name, schema = self.machine.connect(columns)
            self._opening = number
        descriptor: Header = {"call": "produce", "topic": self.topic, "producer": name}
        if self._owner:
            descriptor["owner"] = self._owner
        stream = self._transport.produce(
            descriptor,
            schema,
            lambda header: self._receipt(number, header),
            lambda error: self._broken(number, error or Closed("the broker ended the stream")),
        )
        with self.lock:
            if self.machine.opened(number, schema):
                self._stream = stream
            else:
                self._abandoned.append((stream, False))
        return stream, number, schema

    # The stream's reading thread

    def _receipt(self, number: int, header: Header) -> None:
        error = error_from_json(header["error"]) if "error" in header else None
        with self.lock:
            if number != self.machine.stream_number:
                return
            answered, failed = self.machine.receive(error, self._monotonic())
            if failed or error is not None:
                self.wake()
        if answered is not None:
            self._settle(answered, Outcomes.of_reply(header))
        self._fail(failed)

    def _broken(self, number: int, error: FastiError) -> None:
        """A stream is of no use any more, or could not be opened."""
        with self.lock:
            if number != self.machine.stream_number:
                return
            failed = self.machine.break_off(error, self._monotonic())
            self.wake()
        logger.debug("a stream to %r ended: %s", self.topic, error)
        self._fail(failed)

    # Any thread

    def _finish_abandoned(self) -> None:
        """Ends streams without the lock: that may take a while."""
        with self.lock:
            abandoned, self._abandoned = self._abandoned, []
        for stream, last_word in abandoned:
            if last_word:
                # If it is lost the broker remembers the producer for a while.
                with suppress(FastiError):
                    stream.send({"end": True})
            stream.finish()

    def _fail(self, failed: _Failed) -> None:
        for shipment, error in failed:
            if self.on_refused is not None and self.on_refused(shipment, error):
                self._forget(shipment)
            else:
                self._settle(shipment, None, error)

    def _settle(
        self, shipment: Shipment, outcomes: Outcomes | None, error: FastiError | None = None
    ) -> None:
        shipment.settle(outcomes, error)
        self._forget(shipment)
        if self.on_settled is not None:
            self.on_settled(shipment)

    def _forget(self, shipment: Shipment) -> None:
        """It is not on its way any more."""
        with self.lock:
            looks = self.machine.settle(shipment)
            self._room.notify_all()
            # A lone send that was answered leaves nothing to do: the next one leads.
            if looks or not self._sleeping:
                self.wake()
        for peer in self._peers:
            if peer._waiting_for_room:
                with peer.lock:
                    peer._room.notify_all()


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of its stream, empty where it has none."""
    if batch.schema == schema:
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
