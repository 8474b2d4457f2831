"""A watcher of a key-value topic: its changes as they become durable, from a position on.

A position is a frame of the journal, and watching from it gives what happened behind it. The
latest changes come from the topic's ring, older ones from the journal, as far as it goes back;
beyond that the answer is `gone`, unless nothing at all has happened to the topic since. What one
group of frames did comes in one batch, so that a transaction is never seen in halves.

When the shard recovers the ring begins anew, and a watcher goes on by the journal: it has seen
only what was durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.follower import IDLE_S, Follower, Header, Written
from fasti.broker.kv.changes import changes_batch
from fasti.broker.kv.rings import Moment, Ring, happened_to
from fasti.core.kv.commands import KvDescribe
from fasti.errors import Closed, Gone, InvalidArgument
from fasti.protocol.schemas import CHANGES
from fasti.storage.event_codec import decode_about
from fasti.storage.frames import StoredFrame

if TYPE_CHECKING:
    from fasti.broker.service import Service


# What one batch holds, unless a single moment is larger.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 4 << 20
# Before the journal is looked at again, when it could not tell all.
_PAUSE_S = 0.05


class KvWatcher(Follower):
    """One watcher of one topic."""

    schema = CHANGES

    call = "watch"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        fields = requests.checked(descriptor, topic=str, position=None, prefix="")
        self._topic: str = fields["topic"]
        super().__init__(service, caller, service.placement.shard_of(self._topic))
        self._prefix: str = fields["prefix"] or ""
        wanted = requests.integer(fields, "position")
        if wanted is not None and wanted < 0:
            raise InvalidArgument("a position can't be negative", field="position", limit=0)
        self._number: int = self._describe()["topic"]
        feed = self.shard.feed
        feed.enter()
        try:
            self._ring: Ring = feed.rings.open(self._number)
        except BaseException:
            feed.leave()
            raise
        try:
            now = self._begin()
            self._position = now if wanted is None else self._passed(wanted)
        except BaseException:
            self.close()
            raise
        self._read_through = 0

    @property
    def topic(self) -> str:
        """Whose changes it gets."""
        return self._topic

    def wake(self) -> None:
        """To look whether it is over."""
        self._ring.wake()

    def leave(self) -> None:
        """One fewer watches."""
        self.shard.feed.rings.close(self._ring)
        self.shard.feed.leave()

    def pages(self) -> Iterator[Written]:
        """Changes as they become durable."""
        # At once: the watcher knows where it stands, whatever happens to the wire.
        yield self._said("idle"), None
        yield from self._batches()

    def _batches(self) -> Iterator[Written]:
        while not self.ended:
            found = self._ring.after(self._position)
            if found is None:
                yield from self._older()
                continue
            latest, reached = found
            for moments in _pieces(iter(latest)):
                yield from self._batch(moments, moments[-1].position)
                if self.ended:
                    return
            self._position = max(self._position, reached)
            if not latest and not self._ring.wait(self._position, IDLE_S, self.is_over):
                yield self._said("idle"), None

    def _batch(self, moments: list[Moment], position: int) -> Iterator[Written]:
        batch = changes_batch(moments)
        self._position = position
        if self._prefix:
            batch = batch.filter(pc.starts_with(batch.column("key"), self._prefix))
        if batch.num_rows:
            yield self._said("changes"), batch

    def _said(self, kind: str) -> Header:
        return self.said(kind=kind, position=self._position)

    # What the ring has not

    def _older(self) -> Iterator[Written]:
        """From the journal, up to where the ring begins."""
        base = self._ring.base
        if base is None:
            base = self._begin()
        before = self._position
        try:
            for moments in _pieces(self._stored(base)):
                yield from self._batch(moments, moments[-1].position)
                if self.ended:
                    return
            self._position = max(self._position, min(base, self._read_through))
        except Closed:
            # The shard recovers: soon the journal is another one.
            if self.shard.failed:
                raise
        if self._position == before < base:
            self._ring.wait(base, _PAUSE_S, self.is_over)

    def _stored(self, through: int) -> Iterator[Moment]:
        """What the journal tells; `_read_through` is how far it was read in the end."""
        last = self._position = self._passed(self._position)
        self._read_through = through
        if last >= through:
            return
        happened: list[Any] = []
        for frame in self._replay():
            events, rows = decode_about(frame.body, self._number)
            happened += happened_to(self._number, events, rows)
            if frame.ends_group:
                if happened:
                    yield Moment(frame.sequence, happened)
                last, happened = frame.sequence, []
                if last >= through:
                    return
        # What is answered before it is synced may not be readable yet.
        self._read_through = last

    def _replay(self) -> Iterator[StoredFrame]:
        try:
            yield from self.shard.store.journal.replay(self._position)
        except Gone as error:
            first = self.shard.store.journal.first_sequence
            raise self._gone(f"the watcher was too slow: {error.message}", first - 1) from error

    def _passed(self, position: int) -> int:
        """The position, or a later one up to which nothing has happened to the topic since.

        Raises `gone` where what happened can't be told.
        """
        told = self._describe()
        now: int = told["position"]
        if position > now:
            raise self._gone(f"position {position} lies ahead of the journal", now)
        if told["changed"] <= position:
            return now
        first = self.shard.store.journal.first_sequence
        if position < first - 1:
            raise self._gone(f"what followed position {position} is forgotten", first - 1)
        return position

    def _gone(self, why: str, earliest: int) -> Gone:
        return Gone(why, details={"topic": self._topic, "earliest": earliest})

    def _begin(self) -> int:
        position: int = self._describe()["position"]
        self._ring.begin(position)
        return position

    def _describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service.command(KvDescribe(self._topic)).value
        return found


def _pieces(moments: Iterator[Moment]) -> Iterator[list[Moment]]:
    """Moments that are told together."""
    piece: list[Moment] = []
    rows = size = 0
    for moment in moments:
        piece.append(moment)
        rows += moment.rows
        size += moment.size_bytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield piece
            piece, rows, size = [], 0, 0
    if piece:
        yield piece
