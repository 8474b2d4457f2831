"""Watches what the port's connections bring, and ends those that bring more than they may.

One thread. While connections bring something it wakes 20 times a second and reads one line of /proc: only
if the process has grown does it look at all connections, else at new ones and strangers' now and then,
and at all of them every few seconds. While they bring nothing it rests. What is too much is decided in
strangers.py. Between two looks a stranger can bring as much as the network carries in 50 ms: that
remains, and a memory limit of the service manager bounds it.

When the process has grown, and is calm again, it has the allocators give back what they hold.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from fasti.broker.logs import fields
from fasti.broker.memory import MemoryReturn, anonymous_bytes
from fasti.broker.threads import Threads, Worker
from fasti.config import GuardSettings
from fasti.doors.sockets import Accepted, AcceptedSockets, Activity
from fasti.doors.strangers import Connections, Line, Why

if TYPE_CHECKING:
    from fasti.broker.metrics.counts import Metrics

_log = logging.getLogger("fasti.doors.guard")

_TICK_S = 0.05
# While the process grows.
_HURRY_S = 0.01
_GLANCE_S = 0.5
# While no connection waits for its first call.
_CALM_GLANCE_S = 1.0
# It rests when nothing has come for this long, and for at most so long at a time.
_LINGER_S = 0.2
_REST_S_MAX = 1.0
_SWEEP_S = 5.0
# Looking takes at most this share of the time, however many connections there are.
_SHARE = 0.05
_GROWN_BYTES = 8 << 20
_LOG_EVERY_S = 60.0
_SCOPE = re.compile(r"%[^\]]*")
_MEANING = {
    Why.BYTES: "it brought too many bytes before a call that was let in",
    Why.TIME: "it made no call that was let in",
    Why.NUMBER: "too many connections wait for their first call",
    Why.REQUEST: "it brought more than requests may have",
}


class Guard:
    """Of one port. `line` is for any thread, `start` and `stop` for one."""

    def __init__(
        self,
        settings: GuardSettings,
        metrics: Metrics,
        guarded: bool,
        give_memory_back: Callable[[], None],
    ) -> None:
        self._connections = Connections(settings, guarded)
        self._metrics = metrics
        self._memory = MemoryReturn(anonymous_bytes())
        self._give_memory_back = give_memory_back
        self._sockets: AcceptedSockets | None = None
        self._activity: Activity | None = None
        self._stopping = threading.Event()
        self._worker: Worker | None = None
        self._calm_bytes = anonymous_bytes()
        self._glance_at = self._sweep_at = self._rest_until = self._active_until = 0.0
        self._logged_at = -_LOG_EVERY_S

    def line(self, peer: str) -> Line:
        """Counts what a connection's calls receive. `peer` as gRPC's context tells it."""
        # It writes brackets as URLs do, and may name the network card.
        address = unquote(peer.partition(":")[2])
        return self._connections.line(_SCOPE.sub("", address) if "%" in address else address)

    def start(self, port: int, threads: Threads) -> None:
        """Begins to watch a port of this process."""
        if not AcceptedSockets.are_visible():
            _log.warning(
                "this system doesn't report what connections receive: they are not watched"
            )
            return
        self.look_at(port)
        self._worker = threads.worker("fasti-guard", self._run)
        self._worker.start()

    def look_at(self, port: int) -> None:
        """Which port. A test does so instead of `start`."""
        self._sockets, self._activity = AcceptedSockets(port), Activity()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopping.set()
        if self._worker is not None and self._activity is not None:
            self._activity.wake()
            self._worker.join()
            self._activity.close()

    def _run(self) -> None:
        pause, worker = _TICK_S, self._worker
        assert worker is not None, "started"
        while not self._stopping.wait(pause):
            try:
                rested = self.rest()
                worker.busy()
                pause = self.poll(time.monotonic())
                if rested:
                    pause = 0.0
            except Exception:  # It must live as long as the port.
                _log.exception("watching connections")
                pause = _GLANCE_S
            worker.idle()

    def rest(self) -> bool:
        """Waits while connections bring nothing; whether they brought nothing all the time.

        For the guard's thread, or a test instead of it.
        """
        assert self._sockets is not None, "started"
        assert self._activity is not None, "started"
        now = time.monotonic()
        if now < self._active_until or self._connections.strangers:
            return False
        # A connection that is new by now must wake it, too.
        self._look(now, everything=now >= self._sweep_at)
        if self._connections.strangers:
            return False
        if not self._activity.wait(self._sockets.ours(), _REST_S_MAX):
            return True
        self._active_until = time.monotonic() + _LINGER_S
        return False

    def poll(self, now: float) -> float:
        """One look; how long to wait for the next. For the guard's thread, or a test instead of it."""
        assert self._sockets is not None, "started"
        size = anonymous_bytes()
        if self._memory.is_due(now, size):
            self._give_memory_back()
        self._calm_bytes = min(self._calm_bytes, size)
        grown = size - self._calm_bytes > _GROWN_BYTES
        if grown:
            self._active_until = now + _LINGER_S
        if now >= self._rest_until and (grown or now >= self._glance_at):
            self._look(now, everything=grown or now >= self._sweep_at)
            self._calm_bytes = size
            took = time.monotonic() - now
            self._rest_until = now + took / _SHARE
        return _HURRY_S if grown else _TICK_S

    def _look(self, now: float, everything: bool) -> None:
        assert self._sockets is not None, "started"
        strangers = self._connections.strangers.values()
        self._glance_at = now + (_GLANCE_S if strangers else _CALM_GLANCE_S)
        sockets = self._sockets.look(None if everything else [s.descriptor for s in strangers])
        for connection, why in self._connections.judge(now, sockets):
            if self._sockets.shut(connection):
                self._note(now, connection, why)
        if everything:
            self._sweep_at = now + _SWEEP_S
            self._connections.forget_closed(sockets)
        self._metrics.connections_seen(len(self._connections), len(self._connections.strangers))

    def _note(self, now: float, connection: Accepted, why: Why) -> None:
        """Counted each time, logged now and then: it may go on for hours."""
        self._metrics.connection_ended(why)
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            facts = fields(peer=connection.peer, received_bytes=connection.received_bytes)
            _log.warning("a connection was ended: %s", _MEANING[why], extra=facts)
