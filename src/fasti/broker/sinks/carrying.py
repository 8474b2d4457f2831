"""Carries out what sinks published and that doesn't land by itself: parcels, one after another.

A thread takes the next parcels of a published stage, reads and unwraps them, and sends each as one
command that does what it says and ends the parcel, in one step: so each is carried out once, whatever
happens in between. After a start of the broker it goes on where it was. What a parcel asks for and
can't be (its topic is gone) is counted by the error's code; what may pass is tried again.

The thread is made when there is something to do. Any thread may call `begin` and `wait`.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from fasti.broker.reading import MOVED
from fasti.broker.sinks import rows
from fasti.broker.sinks.rows import Meant
from fasti.broker.threads import Poller
from fasti.core.sinks.commands import Carry, DescribeSinks, ParcelView, ReadParcels, SinkView
from fasti.errors import Closed, Corruption, FastiError, InternalError, Moved

if TYPE_CHECKING:
    from fasti.broker.service import Service

_log = logging.getLogger("fasti.broker.sinks")

# Parcels that are under way at once: they share syncs.
_TOGETHER = 8
_PAUSE_S, _PAUSE_MAX_S = 0.02, 1.0
_LOOK_S = 1.0


class Carrier:
    """One per service."""

    def __init__(self, service: Service) -> None:
        self._service, self._shard = service, service.placement.catalogue
        self._monotonic = service.runtime.monotonic
        self._changed = service.runtime.condition()
        self._stopping = False
        self._changes = 0
        self._pause_s = _PAUSE_S
        self._poller = Poller(service.threads, self._shard.label("fasti-sinks"), self.poll)
        self._is_started = False

    # Any thread

    def start(self) -> None:
        """Goes on with what is left of an earlier life."""
        shard = self._shard
        shard.on_sinks = self._note
        with suppress(FastiError):
            if shard.ask(ReadParcels(1)).result():
                self.begin()

    def begin(self) -> None:
        """Something was published."""
        with self._changed:
            if not self._is_started and not self._stopping:
                self._is_started = True
                self._poller.start()
        self._poller.wake()

    def stop(self) -> None:
        """Carries out nothing more; returns when its thread has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._poller.stop()

    def wait(self, sink: str, batch: int, seconds: float) -> SinkView | None:
        """Waits until a batch is done: what is known of its sink then, or after so long."""
        until = self._monotonic() + seconds
        while True:
            with self._changed:
                seen = self._changes
            views: list[SinkView] = self._service.command(DescribeSinks(sink)).value
            left_s = until - self._monotonic()
            if not views or views[0].batch != batch or views[0].done or left_s <= 0:
                return views[0] if views else None
            with self._changed:
                if self._changes == seen and not self._stopping:
                    self._changed.wait(min(left_s, _LOOK_S))
                if self._stopping:
                    raise self._service.unavailable()

    def _note(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # Its thread

    def poll(self) -> float | None:
        """Carries some parcels out; in how many seconds to come back, None: when there are more."""
        try:
            if not self._carry_some():
                return None
            self._pause_s = _PAUSE_S
            return 0.0
        except (Closed, Moved):
            if self._shard.is_stopped:
                return None
        except FastiError as error:
            _log.warning("sinks: %s; trying again", error)
        except Exception as error:
            self._service.faults.note_call("carry", error)
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _PAUSE_MAX_S)
        return pause_s

    def _carry_some(self) -> bool:
        """The next parcels; False if there are none."""
        shard = self._shard
        parcels: list[ParcelView] = shard.ask(ReadParcels(_TOGETHER)).result()
        if not parcels:
            return False
        try:
            locations = np.array([parcel.location for parcel in parcels], dtype=np.int64)
            contents = shard.store.payloads.gather(locations, names=("payload",), lost=True)
            payloads = contents.column("payload")
        except MOVED:
            return True  # They lie somewhere else by now.
        sent: list[tuple[ParcelView, Future[list[Any]]]] = []
        for parcel, payload in zip(parcels, payloads, strict=True):
            if payload.is_valid:
                command = self._command(parcel, payload.as_buffer())
            else:
                # It will never be readable: the others behind it go on.
                command = Carry(parcel.stage, parcel.sequence, [], {Corruption.code: parcel.rows})
            sent.append((parcel, shard.submit([command])))
        refused = [self._refusal(parcel, answer) for parcel, answer in sent]
        first = next((each for each in refused if each is not None), None)
        if first is not None:
            raise first
        return True

    def _command(self, parcel: ParcelView, payload: Any) -> Carry:
        """What carries a parcel out; if it can't be any more, what says so."""
        batch = rows.unwrapped(payload)
        meant = Meant(parcel.operation, parcel.topic, parcel.kind, parcel.owner)
        try:
            parts, outcomes = rows.commands(self._service, meant, batch)
        except FastiError as error:
            if error.retryable or isinstance(error, Closed):
                raise
            return Carry(parcel.stage, parcel.sequence, [], {error.code: parcel.rows})
        return Carry(parcel.stage, parcel.sequence, parts, outcomes)

    def _refusal(self, parcel: ParcelView, answer: Future[list[Any]]) -> FastiError | None:
        """Hears how a parcel came out; what is to be tried again."""
        error: FastiError | None
        try:
            error = answer.result()[0].error
        except InternalError as failed:
            # The same parcel would make the engine fall again.
            error = failed
        except FastiError as failed:
            return failed
        if error is None:
            return None
        self._service.routes.learn(error)
        if error.retryable:
            return error
        # It will never be possible: the parcel ends, and its rows say why.
        ended = Carry(parcel.stage, parcel.sequence, [], {error.code: parcel.rows})
        self._service.command(ended)
        return None
