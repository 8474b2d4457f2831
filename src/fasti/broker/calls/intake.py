"""A producer's stream: batches in, a receipt for each, in their order.

Two threads: one calls `put` and `finish`, another `next_receipt`. `put` waits while too much has
no receipt yet, and then nothing more is read from the wire: that is the back-pressure.

A small batch that comes alone is decided and synced by the thread that brings it, and `put` returns
its receipt: no thread has to be woken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import check_own
from fasti.core.commands import EndProducer
from fasti.core.replies import Reply
from fasti.errors import Closed, FastiError, InvalidArgument
from fasti.protocol import outcomes
from fasti.protocol.problems import error_to_json
from fasti.protocol.schemas import PRODUCE_TYPES

if TYPE_CHECKING:
    from fasti.broker.service import Service

_BATCHES_MAX = 64
_BYTES_MAX = 64 << 20
# A batch with more rows is worth being read while the one before it is written.
_LONE_ROWS_MAX = 64

Header = dict[str, Any]


@dataclass(slots=True)
class _Pending:
    answer: Future[list[Any]] | FastiError
    size_bytes: int


class Intake:
    """One stream of `produce`."""

    # What a stream's schema may have, and must.
    types: Mapping[str, pa.DataType] = PRODUCE_TYPES
    needed = "payload"
    op = "produce"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        fields = requests.checked(descriptor, topic=str, owner="", producer="")
        self._begin(service, caller, fields["topic"], ordered=bool(fields["producer"]))
        self._owner: str = fields["owner"]
        self._producer: str = fields["producer"]

    def _begin(self, service: Service, caller: Caller, topic: str, ordered: bool) -> None:
        self._service, self.caller, self._topic = service, caller, topic
        self._shard = service.placement.shard_of(topic)
        # Nothing is taken behind a batch that was refused.
        self._ordered = ordered
        self.settings = service.require_topic(topic)
        check_own(topic)
        # Batches whose receipts are to be written, and None at the end.
        self._waiting = service.runtime.queue()
        self._changed = service.runtime.condition()
        # What has no receipt yet, or one that is being written.
        self._batches = self._bytes = 0
        self._written: _Pending | None = None
        self._number = 0
        self._ended = False
        # Called once, set by the service.
        self.when_ended: Callable[[], None] = lambda: None
        self._refused: FastiError | None = None

    def put(self, metadata: Header, batch: pa.RecordBatch, waited: bool = False) -> Header | None:
        """Takes a batch, or notes why not. Waits while too much has no receipt yet.

        `waited` says that the stream was silent before it: then what it returns is the receipt, if
        there is one already.
        """
        misshapen = requests.misshapen(batch)
        size_bytes = 0 if misshapen else batch.nbytes
        return self._put(metadata, batch, batch.num_rows, size_bytes, waited, misshapen)

    def put_row(self, metadata: Header, payload: bytes, waited: bool = False) -> Header | None:
        """The same for one message, whose columns stand in the metadata, in `row`."""
        return self._put(metadata, payload, 1, len(payload), waited)

    def _put(
        self,
        metadata: Header,
        content: pa.RecordBatch | bytes,
        rows: int,
        size_bytes: int,
        waited: bool,
        misshapen: FastiError | None = None,
    ) -> Header | None:
        with self._changed:
            while not self._ended and (
                self._batches >= _BATCHES_MAX
                or (self._batches and self._bytes + size_bytes > _BYTES_MAX)
            ):
                self._changed.wait()
            if self._ended:
                raise Closed("the stream has ended")
            lone = waited and not self._batches and rows <= _LONE_ROWS_MAX
            self._batches += 1
            self._bytes += size_bytes
        try:
            if self._refused is not None:
                raise self._refused
            if misshapen is not None:
                raise misshapen
            pending = _Pending(self._submit_counted(metadata, content, rows, lone), size_bytes)
        except FastiError as error:
            # Tracebacks would keep the batch until the next full collection of garbage.
            error.__cause__ = error.__context__ = error.__traceback__ = None
            if self._ordered:
                self._refused = error
            pending = _Pending(error, size_bytes)
        if lone and isinstance(pending.answer, Future) and pending.answer.done():
            # The other thread waits for something to write: nothing else is written meanwhile.
            receipt = self._receipt_of(pending)
            self._note_written(pending)
            return receipt
        self._waiting.put(pending)
        return None

    def _submit_counted(
        self, metadata: Header, content: pa.RecordBatch | bytes, rows: int, lead: bool
    ) -> Future[list[Any]]:
        """Its rows count towards the caller's share of the inbox until they are answered."""
        share, caller = self._service.shares.inbox_rows, self.caller
        share.take(caller, rows)
        try:
            answer = self._submit(metadata, content, lead)
        except BaseException:
            share.give_back(caller, rows)
            raise
        answer.add_done_callback(lambda _: share.give_back(caller, rows))
        return answer

    def _submit(
        self, metadata: Header, content: pa.RecordBatch | bytes, lead: bool
    ) -> Future[list[Any]]:
        row = metadata.pop("row", None) if type(content) is bytes else None
        fields = requests.checked(
            metadata, sequence=0, on_conflict="reject", atomic=False, partition=None, stage=""
        )
        if fields["sequence"] and not self._producer:
            raise InvalidArgument("only a producer numbers its batches", field="sequence")
        if fields["stage"]:
            self._service.shares.stages.claim(self.caller, fields["stage"])
        given = {
            "topic": self._topic,
            "owner": self._owner,
            "producer": self._producer,
            "producer_sequence": fields["sequence"],
            "on_conflict": fields["on_conflict"],
            "atomic": fields["atomic"],
            "partition": requests.integer(fields, "partition"),
            "stage": fields["stage"],
        }
        seed, limits = self._shard.store.seed, self._service.limits
        if type(content) is bytes:
            if type(row) is not dict:
                raise InvalidArgument("a payload needs its row's columns", field="row")
            command = requests.produce_row(row, content, seed, limits, **given)
        else:
            command = requests.produce(content, seed, limits, self._service.clock.now_us(), **given)
        return self._service.submit(self._shard, [command], lead)

    def end_producer(self) -> None:
        """The producer is over, and has read all its receipts: nothing of it is remembered."""
        if self._producer:
            self._service.submit(self._shard, [EndProducer(self._producer)])

    def _receipt(self, reply: Reply) -> Header:
        self._service.metrics.mutated("produce", self._topic, reply.status)
        return outcomes.encode(reply)

    def finish(self) -> None:
        """No more batches come; `next_receipt` says None behind the last receipt."""
        self._waiting.put(None)

    def end(self) -> None:
        """No receipts are read any more. May be called again."""
        with self._changed:
            ended, self._ended = self._ended, True
            self._changed.notify_all()
        if not ended:
            self.when_ended()

    def close(self) -> None:
        """The wire is gone, or done."""
        self.end()

    def next_receipt(self) -> Header | None:
        """The next batch's receipt, when it is durable; None at the end. The one before is written."""
        if self._written is not None:
            self._note_written(self._written)
        self._written = pending = self._waiting.get()
        return None if pending is None else self._receipt_of(pending)

    def _receipt_of(self, pending: _Pending) -> Header:
        try:
            if isinstance(pending.answer, FastiError):
                raise pending.answer
            reply: Reply = pending.answer.result()[0]
            if reply.error is not None:
                raise reply.error
            receipt = self._receipt(reply)
        except Exception as raised:
            error = (
                raised
                if isinstance(raised, FastiError)
                else self._service.failed(self.op, raised, self._shard)
            )
            # The next batch is routed by the bindings as they are now.
            self._service.routes.learn(error)
            # Behind a refused batch the engine saw a gap: the first refusal is what happened.
            error = self._refused if self._refused is not None and self._ordered else error
            if self._ordered:
                self._refused = error
            self._service.metrics.refused(self.op, error.code, self.caller.name)
            receipt = {"error": error_to_json(error)}
        receipt["batch"] = self._number
        self._number += 1
        return receipt

    def _note_written(self, pending: _Pending) -> None:
        with self._changed:
            self._batches -= 1
            self._bytes -= pending.size_bytes
            self._changed.notify_all()
