"""Damaged payloads: messages that have lost theirs are given up, one by one, and the rest goes on.

Whoever meets damage says so here: a delivery that could not read some of its messages, a checkpoint
that moves rows, a scrub. The engine then makes those messages dead with the reason `corrupt`, by an event
like any other. Nothing waits for that: what is undamaged is on its way already.

Any thread.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Lease
from fasti.core.replies import Deliver
from fasti.core.timeline.corrupt import GiveUp
from fasti.errors import FastiError
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.damage")

_NAMED = 5
_LOGGED_MAX = 1_000


class DamageControl:
    """What is done about messages that can't be read; what was done is counted."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._lock = threading.Lock()
        self._logged = 0
        # Messages that became dead, and rows of logs for their groups, by topic.
        self.corrupt: dict[str, int] = {}

    def give_up_delivered(self, leased: Deliver, lost: NDArray[np.bool_], consumer: str) -> None:
        """Of leased messages some can't be read: they die, and the session gets as many others.

        Raises what the shard says if nothing of that will be: the session would wait for ever.
        """
        command = GiveUp(leased.topic, leased.ids[lost], leased.location[lost], leased.group)
        count = int(lost.sum())
        again = Lease(leased.topic, leased.session, consumer, count, group=leased.group)
        if consumer:
            self._submit(command, again)
        else:
            self.give_up(command)

    def give_up(self, command: GiveUp) -> None:
        """These messages can't be read."""
        with suppress(FastiError):  # It ends, or recovers, or has too much to do: they come again.
            self._submit(command)

    def _submit(self, command: GiveUp, *then: Lease) -> None:
        answer = self._shard.submit([command, *then])
        answer.add_done_callback(lambda done: self._note(command, done))

    def _note(self, command: GiveUp, done: Future[list[Any]]) -> None:
        if done.exception() is not None or done.result()[0].error is not None:
            return
        dead = command.ids[done.result()[0].status == Outcome.OK]
        if not len(dead):
            return
        with self._lock:
            self.corrupt[command.topic] = self.corrupt.get(command.topic, 0) + len(dead)
            self._logged += 1
            logged = self._logged
        if logged <= _LOGGED_MAX:
            named = ", ".join(str(number) for number in dead[:_NAMED].tolist())
            more = ", ..." if len(dead) > _NAMED else ""
            _log.error(
                "%d messages of %r can't be read and are dead of `corrupt`: %s%s",
                *(len(dead), command.topic, named, more),
            )
