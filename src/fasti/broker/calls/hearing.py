"""What is heard from a consumer by its session, and what the engine is told of its silence.

`broker/liveness.py` decides when a session is silent, `core/delivery/silence.py` what follows from it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fasti.broker.calls import requests
from fasti.core.commands import Heard, Unheard
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.session import Session
    from fasti.broker.shard import Shard


class Hearing:
    """Of one session. `hear` is for the thread that reads from the wire, `wrote` for the one that writes,
    the rest for any.
    """

    def __init__(
        self, shard: Shard, session: Session, topic: str, consumer: str, group: str
    ) -> None:
        self._shard, self._session = shard, session
        self._place, self._group = (topic, session.number, consumer), group
        # Around what the engine is told: that something came is said behind that nothing did.
        self._lock = threading.Lock()
        # How many frames came; the last lease that was written by then, and by now.
        self.frames = 0
        self._heard_token = self._written_token = 0
        # Whether the engine was told that nothing comes.
        self._unheard = self._closed = False
        # When the session came, last asked for or finished messages, and last said anything.
        self.opened_us = self.active_us = self.heard_us = shard.clock.now_us()

    @property
    def token_unheard(self) -> int:
        """The last lease that went to the session since something last came; 0 if none did."""
        token = self._session.last_token
        return token if token > self._heard_token else 0

    def hear(self, op: Any) -> None:
        """A frame came. Before it is carried out: the engine knows better again."""
        self.frames += 1
        self._heard_token = self._written_token
        finishes = self._session.doubted and op in requests.RETURNS
        if self._unheard or finishes:
            self._say_heard(finishes)
        self.heard_us = self._shard.clock.now_us()
        if op not in ("heartbeat", "clock"):
            self.active_us = self.heard_us

    def wrote(self, token: int) -> None:
        """Messages of this lease are written next."""
        self._written_token = max(self._written_token, token)

    def fall_silent(self, frames: int, hold_back: bool) -> None:
        """Nothing has come since so many frames. Raises what the shard says."""
        with self._lock:
            # First: a frame that comes between the look and the word says behind it that it came.
            self._unheard = True
            if self.frames == frames and not self._closed:
                self._say_unheard(self._heard_token, hold_back)

    def hold_back(self) -> None:
        """Nothing more goes to the session until something comes from it."""
        with self._lock:
            if not self._closed:
                self._say_unheard(self._session.last_token, True)

    def close(self) -> None:
        """The session is over: the engine is told nothing more."""
        with self._lock:
            self._closed = True

    def _say_unheard(self, after_token: int, hold_back: bool) -> None:
        self._unheard = True
        self._shard.submit([Unheard(*self._place, after_token, hold_back, self._group)])

    def _say_heard(self, finished: bool) -> None:
        with self._lock, suppress(FastiError):
            self._shard.submit([Heard(*self._place, finished, self._group)])
            self._unheard = False
            if finished:
                self._session.doubted = False
