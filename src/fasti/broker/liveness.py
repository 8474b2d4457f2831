"""Consumers' sessions whose peer is gone, though no socket says so.

A session over a network is alive while frames come from it: anything counts, and a client that has
nothing to say asks for the time. `Liveness.poll` looks at every session now and then:

- Nothing came for half of a lease, and something was delivered since: the engine is told, so that
  those leases count as no attempts if they end like this (core/delivery/silence.py).
- Nothing came for half of `session_silence`: the session gets nothing more until it is heard.
- Nothing came for `session_silence`, or a write has been stuck for that long and for a whole lease: the
  session is ended with `closed`. Its leases stay until they end, because the work may still be done,
  and somebody may come back under its name. A connection whose sessions are all ended is hung up.

Silence is counted in polls: while the broker itself stands still (a machine that sleeps, a debugger),
nobody grows silent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fasti.broker.logs import fields
from fasti.broker.threads import Poller
from fasti.errors import Closed, FastiError

if TYPE_CHECKING:
    from fasti.broker.calls.subscription import Subscription
    from fasti.broker.metrics.counts import Metrics
    from fasti.broker.threads import Threads
    from fasti.model import Limits

_log = logging.getLogger("fasti.broker")

POLL_S = 0.25
# A session that was told its end has so long to read it.
_GRACE_S = 2.0


@dataclass(slots=True)
class _Watched:
    """What was seen of a session, and for how long nothing has changed."""

    frames: int = -1
    silent_s: float = 0.0
    writes: int = -1
    stuck_s: float = 0.0
    held_back: bool = False
    # The last lease of which the engine was told that nothing came since.
    told_token: int = 0
    ended_s: float | None = None


class HasSessions(Protocol):
    """A service, or a host of several."""

    limits: Limits
    threads: Threads
    metrics: Metrics

    def subscriptions(self) -> dict[int, Subscription]: ...


class Liveness:
    """Of one broker's sessions. `poll` is for one thread; `start` makes one that calls it."""

    def __init__(self, service: HasSessions, hang_up: Callable[[str], bool]) -> None:
        self._service, self._hang_up = service, hang_up
        self._silence_s = service.limits.session_silence_us / 1e6
        self._watched: dict[Subscription, _Watched] = {}
        self._poller = Poller(service.threads, "fasti-liveness", self._poll)

    def start(self) -> None:
        """Polls from now on."""
        self._poller.start()

    def stop(self) -> None:
        """No session is ended any more."""
        self._poller.stop()

    def _poll(self) -> float:
        self.poll(POLL_S)
        return POLL_S

    def poll(self, elapsed_s: float) -> None:
        """Looks at all sessions, so long after the last time."""
        sessions = [each for each in self._service.subscriptions().values() if each.on_network]
        watched = self._watched
        self._watched = {each: watched.get(each) or _Watched() for each in sessions}
        ended: list[Subscription] = []
        for session, seen in self._watched.items():
            if seen.ended_s is not None:
                seen.ended_s += elapsed_s
                if seen.ended_s >= _GRACE_S:
                    self._give_up(session)
            elif self._is_gone(session, seen, elapsed_s):
                seen.ended_s = 0.0
                self._end(session)
                ended.append(session)
        if ended:
            self._service.metrics.sessions_ended_silent(len(ended))
            _log.warning(
                "sessions were ended: nothing came from their consumers",
                extra=fields(count=len(ended), seconds=self._silence_s, **ended[0].identity),
            )

    def _is_gone(self, session: Subscription, seen: _Watched, elapsed_s: float) -> bool:
        lease_s = session.lease_us / 1e6
        writes, writing = session.writes
        seen.stuck_s = seen.stuck_s + elapsed_s if writing and writes == seen.writes else 0.0
        seen.writes = writes
        frames = session.hearing.frames
        if frames != seen.frames:
            seen.frames, seen.silent_s, seen.held_back = frames, 0.0, False
        else:
            seen.silent_s += elapsed_s
            with suppress(FastiError):
                self._tell_engine(session, seen, lease_s)
        return seen.silent_s >= self._silence_s or seen.stuck_s >= max(self._silence_s, lease_s)

    def _tell_engine(self, session: Subscription, seen: _Watched, lease_s: float) -> None:
        """Says of a silent session what it has that nobody may have opened."""
        hold_back = seen.silent_s >= self._silence_s / 2
        token = session.hearing.token_unheard
        marks = token > seen.told_token and seen.silent_s >= lease_s / 2 - 2 * POLL_S
        if (hold_back and not seen.held_back) or ((marks or hold_back) and token > seen.told_token):
            session.hearing.fall_silent(seen.frames, hold_back)
            seen.held_back, seen.told_token = hold_back, max(token, seen.told_token)

    def _end(self, session: Subscription) -> None:
        silence = f"{self._silence_s:g} s"
        session.end_for_silence(
            Closed(
                f"nothing was heard from this consumer for {silence}: connect again, and write "
                "something every few seconds (`clock` will do)"
            )
        )

    def _give_up(self, session: Subscription) -> None:
        """The peer doesn't take its end: nothing waits for it any more."""
        session.close()
        peers = [
            seen for each, seen in self._watched.items() if each.caller.peer == session.caller.peer
        ]
        if all(seen.ended_s is not None and seen.ended_s >= _GRACE_S for seen in peers):
            self._hang_up(session.caller.peer)
