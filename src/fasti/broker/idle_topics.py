"""Topics that delete themselves when nobody uses them, on several shards: looked at on all of them.

No shard deletes an entry of the catalogue by itself, because another one may use it. This step, beside
shard 0, asks every shard for its idle topics, now and then while there are topics with an `idle_age`, and
deletes on shard 0 those that are idle everywhere. A shard that doesn't answer keeps all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fasti.broker.threads import Poller
from fasti.core.commands import DeleteTopic
from fasti.errors import FastiError, NotFound

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.core.catalogue.commands import IdleTopic

_log = logging.getLogger("fasti.broker.catalogue")

# Looked at so many times in the shortest idle age of all, but within these bounds.
_LOOKS_PER_AGE = 8
_LOOK_S_MIN, _LOOK_S_MAX = 0.1, 60.0


class AsksIdle(Protocol):
    """A way to a shard."""

    def idle(self, after: int) -> list[IdleTopic]: ...


class IdleTopics:
    """One per broker, in the process of shard 0."""

    def __init__(
        self,
        service: Service,
        shards: Callable[[], Sequence[AsksIdle]],
        tell_all: Callable[[], None],
    ) -> None:
        """`shards` tells the ways to all, shard 0 first: they may lie elsewhere the next time."""
        self._service, self._shard = service, service.placement.catalogue
        self._shards, self._tell_all = shards, tell_all
        self._poller = Poller(service.threads, "fasti-idle-topics", self._poll)

    def start(self) -> None:
        """Begins."""
        self._poller.start()

    def stop(self) -> None:
        """Deletes nothing more."""
        self._poller.stop()

    def look(self) -> None:
        """Topics have changed: one may have an end now."""
        self._poller.wake()

    def _poll(self) -> float | None:
        ages_us = [
            topic.settings.idle_age_us for topic in list(self._shard.engine.state.mortal.values())
        ]
        if not ages_us:
            return None
        try:
            self.delete_now()
        except FastiError as error:
            _log.info("idle topics are kept for now: %s", error)
        return min(max(min(ages_us) / 1e6 / _LOOKS_PER_AGE, _LOOK_S_MIN), _LOOK_S_MAX)

    def delete_now(self) -> None:
        """Asks every shard, and deletes what is idle on all. Raises what the shards raise."""
        first, *others = self._shards()
        idle = {topic.number: topic for topic in self._read(first)}
        for shard in others:
            if not idle:
                return
            there = {topic.number for topic in self._read(shard)}
            idle = {number: topic for number, topic in idle.items() if number in there}
        for topic in idle.values():
            self._delete(topic)
        if idle:
            self._tell_all()

    def _read(self, shard: AsksIdle) -> list[IdleTopic]:
        found: list[IdleTopic] = []
        while page := shard.idle(found[-1].number if found else 0):
            found += page
        return found

    def _delete(self, topic: IdleTopic) -> None:
        service = self._service
        with service.topic_lock:
            known = self._shard.engine.state.by_name.get(topic.name)
            # Another one may have its name by now.
            if known is None or known.number != topic.number:
                return
            try:
                service.command(DeleteTopic(topic.name))
            except NotFound:
                return
        service.topic_gone(topic.name)
