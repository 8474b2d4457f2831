"""What one producer has on its way to the shards of a topic: an outbox for each, made when it is needed.

Each has its own name, numbers, stream and threads, so that a shard that is away holds up no other one; the
limits of the buffer are for all together. Which shard has what the topic's layout says. Rows without a key go
to one shard as long as its open batch is filled, then to the next: so they are gathered as with one shard, and
many are spread over all of them. A shard with which something is wrong is left out.

A topic may be deleted and made anew on other shards: then a shard answers `wrong_shard`, having done nothing.
What it refused is routed by the new layout, in the order in which it was refused, by a thread that ends with it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client import forking
from fasti.client.failures import FailureReports, Failures
from fasti.client.outbox import Outbox
from fasti.client.outcomes import Outcomes
from fasti.client.producer import Cut, Producer, cut_pieces
from fasti.client.receipts import Shipment
from fasti.client.transport import Transport
from fasti.core.layout import Layout
from fasti.errors import (
    Closed,
    CrossShard,
    FastiError,
    NoQuorum,
    NotFound,
    TimedOut,
    WrongShard,
)
from fasti.model import Limits

logger = logging.getLogger("fasti.client")

# So many rows without a key go to one shard before the next one has its turn: one that sends little keeps
# to one stream.
_STAY_ROWS, _STAY_ROWS_MAX = 64, 1_000
# The same for batches, while others are on their way: they share a sync.
_STAY_BATCHED_ROWS = 20_000
# Between two questions for a layout that nobody can answer for certain now, unless the broker says how long.
_PAUSE_US = 100_000
# So often a shipment is sent elsewhere before it fails.
_MOVES_MAX = 3


class Outboxes:
    """Those of one producer. As `Outbox` to what waits for all of them. Any thread.

    `make` makes the producer of one shard.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        make: Callable[[Transport, Failures], Producer],
        failures: Failures,
        limits: Limits,
    ) -> None:
        self.topic, self.failures = topic, failures
        self._transport, self._make, self._limits = transport, make, limits
        self.lock = threading.Lock()
        self._changed = transport.runtime.condition(self.lock)
        self._layout: Layout | None = None
        self._senders: dict[int, Producer] = {}
        self._boxes: list[Outbox] = []
        # Where rows without a key go, and how many did since its turn began.
        self._turn: Producer | None = None
        self._turn_place = int(transport.runtime.random() * transport.shard_count)
        self._stayed = 0
        self._leads = True
        self._on_settled: Callable[[Shipment], None] | None = None
        # What was refused by a shard that doesn't have it, and how much of that is not settled.
        self._refused: deque[Shipment] = deque()
        self._moving = 0
        self._mover: threading.Thread | None = None
        self._closed = False
        # What waits for any of them asks this one, as it would ask an outbox's.
        self.machine = self
        forking.register(self)

    # Routing

    @property
    def layout(self) -> Layout:
        """The topic's. Waits for the broker where it is not known. Raises `unavailable`, `timed_out`, `no_quorum`.

        Where there is no such topic, any shard says so.
        """
        runtime, until = self._transport.runtime, None
        while self._layout is None:
            try:
                self._layout = self._transport.layout(self.topic)
            except NotFound:
                return Layout(self._transport.shard_count)
            except NoQuorum as error:
                # As what is sent waits for its shard, so this waits for the one that knows.
                until = until or runtime.monotonic() + self._transport.timeout_s
                if runtime.monotonic() >= until:
                    raise
                runtime.sleep((error.retry_after_us or _PAUSE_US) / 1e6)
        return self._layout

    @property
    def knows_layout(self) -> bool:
        """Whether it need not be asked for."""
        return self._layout is not None

    def sender(self, shard: int) -> Producer:
        """The producer of one shard. Raises `closed`."""
        sender = self._senders.get(shard)
        return sender if sender is not None else self._new_sender(shard)

    def _new_sender(self, shard: int) -> Producer:
        with self.lock:
            if self._closed:
                raise Closed(f"the producer of {self.topic!r} is closed")
            if shard not in self._senders:
                sender = self._make(self._transport.shard(shard), self.failures)
                box: Outbox = sender.outbox
                box.leads = box.leads and self._leads
                box.on_settled, box.on_refused = self._on_settled, self._refuse
                box.share_with(self._boxes)
                self._boxes.append(box)
                self._senders[shard] = sender
            return self._senders[shard]

    def sender_in_turn(self) -> Producer:
        """The producer of the shard that rows without a key go to now."""
        sender = self._turn
        if sender is not None and self._layout is not None:
            stayed = self._stayed = self._stayed + 1
            machine = sender.outbox.machine
            if machine.trouble is None and stayed < _STAY_ROWS_MAX:
                # Not in the middle of a batch.
                if stayed < _STAY_ROWS or machine.open is not None:
                    return sender
        return self._next_turn()

    def _next_turn(self) -> Producer:
        shards = self.layout.all_shards
        self._stayed = 0
        sender = self._turn
        for _ in shards:
            self._turn_place = place = (self._turn_place + 1) % len(shards)
            sender = self._turn = self.sender(shards[place])
            if sender.outbox.machine.trouble is None:
                break
        assert sender is not None, "a topic has a shard"
        return sender

    def cut(self, batch: pa.RecordBatch, atomic: bool, partition: int | None) -> Cut:
        """A batch as the pieces in which it travels to their shards.

        Raises `cross_shard` if an atomic one has rows on several.
        """
        layout, keys = self.layout, None
        if partition is not None:
            return self._to_one(batch, atomic, self.sender(layout.shard_of(partition)))
        if "key" in batch.schema.names:
            keys = batch.column("key")
        if keys is None or keys.null_count == len(keys):
            return self._in_turn(batch, atomic)
        shards = layout.shards_of_keys(keys)
        if keys.null_count:
            unkeyed = keys.is_null().to_numpy(zero_copy_only=False)
            # They may be anywhere: where the others are, if these are in one place.
            shards[unkeyed] = shards[int(np.argmin(unkeyed))]
        if int(shards.min()) == int(shards.max()):
            return self._to_one(batch, atomic, self.sender(int(shards[0])))
        if atomic:
            raise CrossShard(
                f"an atomic batch to {self.topic!r} has keys on shards "
                f"{', '.join(map(str, np.unique(shards)))}: what has to happen together lies on one "
                "shard in a topic with width=1, or with one key, or goes without atomic",
                details={"topic": self.topic},
            )
        return self._split(batch, shards)

    def _to_one(self, batch: pa.RecordBatch, atomic: bool, sender: Producer) -> Cut:
        return Cut([(sender.outbox, piece) for piece in cut_pieces(batch, self._limits, atomic)])

    def _in_turn(self, batch: pa.RecordBatch, atomic: bool) -> Cut:
        """Whole pieces, some to one shard, then to the next."""
        pieces: list[tuple[Outbox, pa.RecordBatch]] = []
        for piece in cut_pieces(batch, self._limits, atomic):
            sender = self._turn
            stays = self._layout is not None and self._stayed < _STAY_BATCHED_ROWS
            if sender is None or not stays or not _is_busy(sender.outbox):
                sender = self._next_turn()
            self._stayed += piece.num_rows
            pieces.append((sender.outbox, piece))
        return Cut(pieces)

    def _split(self, batch: pa.RecordBatch, shards: NDArray[np.int64]) -> Cut:
        order = np.argsort(shards, kind="stable")
        sorted_batch = batch.take(pa.array(order))
        numbers, begins = np.unique(shards[order], return_index=True)
        ends = [*begins[1:].tolist(), len(order)]
        cut: list[tuple[Outbox, pa.RecordBatch]] = []
        for shard, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
            box = self.sender(shard).outbox
            part = sorted_batch.slice(begin, end - begin)
            cut += [(box, piece) for piece in cut_pieces(part, self._limits, False)]
        return Cut(cut, order)

    # As an outbox

    @property
    def leads(self) -> bool:
        """Whether callers may write."""
        return self._leads

    @leads.setter
    def leads(self, leads: bool) -> None:
        self._leads = leads
        for box in self._boxes:
            box.leads = box.leads and leads

    @property
    def on_settled(self) -> Callable[[Shipment], None] | None:
        """Called after each shipment's answer."""
        return self._on_settled

    @on_settled.setter
    def on_settled(self, on_settled: Callable[[Shipment], None] | None) -> None:
        self._on_settled = on_settled
        for box in self._boxes:
            box.on_settled = on_settled

    @property
    def full(self) -> bool:
        """Whether a send might have to wait for room."""
        boxes = self._boxes
        return bool(boxes) and boxes[0].machine.full

    def mark(self) -> list[tuple[Outbox, int]]:
        """Has everything gathered so far go; `answered` tells when all of it has its receipt."""
        marks = []
        for box in list(self._boxes):
            with box.lock:
                marks.append((box, box.machine.mark()))
                box.wake()
        return marks

    def wake(self) -> None:
        """Each was woken."""

    def answered(self, marks: list[tuple[Outbox, int]]) -> bool:
        """Whether everything sent before the mark has its receipt. Needs no lock."""
        return not self._moving and all(box.machine.answered(mark) for box, mark in marks)

    @property
    def settled(self) -> bool:
        """Whether nothing is gathered or under way."""
        return not self._moving and all(box.settled for box in list(self._boxes))

    @property
    def over(self) -> bool:
        """Whether its threads have ended too."""
        return not self._moving and all(box.over for box in list(self._boxes))

    def flush(self, timeout: float | None) -> None:
        """Waits until everything sent before has its receipt. Raises `timed_out`."""
        monotonic = self._transport.runtime.monotonic
        until = None if timeout is None else monotonic() + timeout
        marks = self.mark()
        for box, mark in marks:
            left_s = None if until is None else max(0.0, until - monotonic())
            box.await_answers(mark, left_s)
        with self.lock:
            left_s = None if until is None else max(0.0, until - monotonic())
            if not self._changed.wait_for(lambda: not self._moving, left_s):
                raise TimedOut(f"not everything sent to {self.topic!r} was answered in {timeout} s")

    def close(self) -> None:
        """Takes nothing more. What has no receipt yet fails as `closed`."""
        with self.lock:
            self._closed = True
        for box in list(self._boxes):
            box.close()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """Its own."""
        return [self.lock]

    def _forked(self) -> None:
        """In a child process: what is on its way is the parent's."""
        self._changed = self._transport.runtime.condition(self.lock)
        while self._refused:
            self._refused.popleft().leave_to_parent()
        self._moving, self._mover = 0, None

    # What goes another way

    def _refuse(self, shipment: Shipment, error: FastiError) -> bool:
        """A shipment was refused, says the thread that brings answers. True: it goes another way."""
        if not isinstance(error, WrongShard | NotFound):
            return False
        self._transport.forget_layout(self.topic)
        self._layout = None
        if isinstance(error, NotFound) or shipment.stage or shipment.moves >= _MOVES_MAX:
            return False
        with self.lock:
            if self._closed:
                return False
            self._moving += 1
            self._refused.append(shipment)
            if self._mover is None:
                self._mover = threading.Thread(
                    target=self._move_all, name=f"fasti-move-{self.topic}", daemon=True
                )
                self._mover.start()
        return True

    def _move_all(self) -> None:
        while True:
            with self.lock:
                if not self._refused:
                    self._mover = None
                    return
                shipment = self._refused.popleft()
            try:
                self._move(shipment)
            except FastiError as error:
                self._settle(shipment, None, error)
            except Exception as error:  # Whoever waits is told.
                logger.exception("routing rows of %r anew", self.topic)
                self._settle(shipment, None, FastiError(f"{type(error).__name__}: {error}"))

    def _move(self, shipment: Shipment) -> None:
        """Sends what it has by the layout of now. Its failures count once, as its own."""
        cut = self.cut(shipment.seal(), shipment.atomic, shipment.partition)
        quiet = Failures("", None, FailureReports(logging.DEBUG))
        parcels: list[Shipment] = []
        for box, piece in cut.pieces:
            with box.lock:
                parcel = box.add(
                    piece, shipment.on_conflict, shipment.atomic, "", shipment.partition
                )
                parcel.failures, parcel.moves = quiet, shipment.moves + 1
            parcels.append(parcel)
        left = [len(parcels)]
        told = partial(self._one_answered, shipment, parcels, cut.places, left)
        for parcel in parcels:
            parcel.when_answered(told)

    def _one_answered(
        self,
        shipment: Shipment,
        parcels: list[Shipment],
        places: NDArray[np.intp] | None,
        left: list[int],
    ) -> None:
        with self.lock:
            left[0] -= 1
            if left[0]:
                return
        errors = [parcel.error for parcel in parcels if parcel.error is not None]
        if errors:
            self._settle(shipment, None, errors[0])
            return
        outcomes = Outcomes.joined([parcel.outcomes for parcel in parcels if parcel.outcomes])
        self._settle(shipment, outcomes if places is None else outcomes.placed(places))

    def _settle(
        self, shipment: Shipment, outcomes: Outcomes | None, error: FastiError | None = None
    ) -> None:
        shipment.settle(outcomes, error)
        with self.lock:
            self._moving -= 1
            self._changed.notify_all()
        if self._on_settled is not None:
            self._on_settled(shipment)


def _is_busy(box: Outbox) -> bool:
    """Whether something is on its way, and nothing is wrong with that."""
    return box.machine.trouble is None and not box.settled
