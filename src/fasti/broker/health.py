"""Whether a broker is alive, and whether work gets done.

Alive means that it is no use to start it again: no thread has died or stands still, and the shard has not
failed. Ready means that work gets done: alive, not stopping or recovering, with room on the disk, with
enough of the servers there that keep a cluster's journals, and a step went all the way just now, through the sequencer and the committer. That step is empty, costs what a
heartbeat costs, and is never asked for twice at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fasti.broker.clock import ClockState
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard

# Less than whoever asks over the wire is willing to wait.
_ANSWER_S = 2.0


class Pulse:
    """Asks the shard for a sign of life. Any thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._lock = threading.Lock()
        self._pending: Future[list[Any]] | None = None

    def beats(self, within_s: float = _ANSWER_S) -> bool:
        """Whether an empty step comes back in time. One that is late is waited for by all who ask."""
        try:
            with self._lock:
                if self._pending is None or self._pending.done():
                    self._pending = self._shard.submit([])
                pending = self._pending
            pending.result(within_s)
        except (FastiError, TimeoutError):
            return False
        return True


def report(service: Service) -> dict[str, Any]:
    """What the action `health` answers, of all shards of the process.

    Where there are several, `shard` is the number of the one that the state or the reason is about.
    """
    host = service.host
    shards = service.placement.shards() if host is None else host.all_shards()
    state = "serving"
    if any(shard.failed for shard in shards):
        state = "failed"
    elif service.stopping:
        state = "stopping"
    troubles = service.threads.troubles()
    told: dict[str, Any] = {"ready": False, "state": state}
    if host is not None and state == "failed":
        told["shard"] = next(shard.place.number for shard in shards if shard.failed)
    if troubles:
        told["threads"] = [trouble.to_json() for trouble in troubles]
    reasons = ((reason, shard) for shard in shards for reason in _reasons(shard))
    reason, shard = (None, None) if state != "serving" else next(reasons, (None, None))
    if reason is not None:
        told["reason"] = reason
        if host is not None and shard is not None:
            told["shard"] = shard.place.number
    if without := [shard.place.number for shard in shards if shard.committer.no_quorum is not None]:
        told["no_quorum"] = without
    told["ready"] = state == "serving" and reason is None
    if told["ready"] and service.clock.read().state is ClockState.DOUBTING:
        # Work gets done, by the broker's own clock: whoever looks is told.
        told["reason"] = "clock_leap"
    if host is not None and (alarms := host.alarms()):
        # Work gets done, from what is whole.
        told["alarms"] = alarms
    return told


def _reasons(shard: Shard) -> Iterator[str]:
    """Why no work gets done, the best known first: later ones may follow from it."""
    if shard.room.full:
        yield "storage_full"
    if shard.committer.no_quorum is not None:
        yield "no_quorum"
    if shard.recovers:
        yield "recovering"
    if troubles := shard.threads.troubles():
        yield f"thread_{troubles[0].state}"
    if not shard.pulse.beats():
        yield "not_answering"
