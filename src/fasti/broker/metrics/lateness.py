"""How late messages were started: the broker remembers what it sent until it hears of it again.

Lateness is `started − max(due, created)`. The engine keeps no time of creation, but whoever joins
a delivery with its payloads sees it, so it is noted there and looked up when an ack, nack or
release says when user code got the message. Any thread; a note that nobody asks for is dropped
when there are too many.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

_ROWS_MAX = 1 << 20


@dataclass(slots=True)
class _Note:
    ids: Int64s
    ready_us: Int64s
    left: int


class LatenessBook:
    """Notes of deliveries by their token."""

    def __init__(self) -> None:
        self._notes: OrderedDict[int, _Note] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def delivered(self, token: int, ids: Int64s, ready_us: Int64s) -> None:
        """These may be started from `ready_us` on: when they are due and there."""
        with self._lock:
            note = self._notes.get(token)
            if note is not None:
                # A large delivery comes in parts.
                ids = np.concatenate([note.ids, ids])
                ready_us = np.concatenate([note.ready_us, ready_us])
                self._rows -= len(note.ids)
            self._notes[token] = _Note(ids, ready_us, len(ids))
            self._rows += len(ids)
            while self._rows > _ROWS_MAX and len(self._notes) > 1:
                self._rows -= len(self._notes.popitem(last=False)[1].ids)

    def started(self, ids: Int64s, tokens: Int64s, started_us: Int64s) -> Int64s:
        """The lateness of those that were started (not 0) and are known."""
        if not len(ids):
            return ids
        if len(tokens) == 1 or (tokens == tokens[0]).all():
            return self._of_token(int(tokens[0]), ids, started_us)
        order = np.argsort(tokens, kind="stable")
        starts = np.flatnonzero(np.diff(tokens[order])) + 1
        return np.concatenate(
            [
                self._of_token(int(tokens[rows[0]]), ids[rows], started_us[rows])
                for rows in np.split(order, starts)
            ]
        )

    def _of_token(self, token: int, ids: Int64s, started_us: Int64s) -> Int64s:
        with self._lock:
            note = self._notes.get(token)
            if note is None:
                return ids[:0]
            note.left -= len(ids)
            if note.left <= 0:
                del self._notes[token]
                self._rows -= len(note.ids)
        ready_us = _find(note, ids)
        known = (ready_us > 0) & (started_us > 0)
        return (started_us - ready_us)[known]


def _find(note: _Note, ids: Int64s) -> Int64s:
    # Whole batches are acked as they came.
    if len(ids) == len(note.ids) and (ids == note.ids).all():
        return note.ready_us
    order = np.argsort(note.ids)
    places = order[np.searchsorted(note.ids, ids, sorter=order).clip(max=len(order) - 1)]
    return np.where(note.ids[places] == ids, note.ready_us[places], 0)
