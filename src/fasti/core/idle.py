"""Topics that go by themselves when no client has used them for a while: the inboxes of callers.

A topic with an `idle_age` is deleted, with everything in it, when for that long nothing happened in
it, no session waited for its messages and none was leased. What happened is told by events and by
sessions that end (`Topic.active_us`, kept by checkpoints); that a session waits is noticed when the
topic is looked at, and then it is looked at again a whole age later. After a start every topic has its full age again,
because no client could use it while the broker was away.

On several shards a topic of the catalogue may be used on another one: no shard deletes it by itself, but
tells that it is idle there (`ReadIdle`), and who knows that of all shards deletes it on shard 0.

Looking is planned, so topics cost nothing in between. The sequencer's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fasti.core.agenda import Agenda
from fasti.core.catalogue.commands import IdleTopic, ReadIdle
from fasti.core.delivery.turns import Key
from fasti.core.replies import Done
from fasti.core.state import Topic
from fasti.core.work import Work

if TYPE_CHECKING:
    from fasti.core.engine import Engine

# So many topics are looked at in one step.
_LOOKED_PER_STEP = 64
_TOLD_PER_STEP = 1_000


class Idle:
    """Which topics have an end, and when to look at each of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state
        self.agenda: Agenda[int] = Agenda()
        # No client could use anything before this: when the first step was.
        self._since_us: int | None = None

    def look(self, work: Work) -> bool:
        """Deletes what no client uses; True if there is more to do at once."""
        if self._since_us is None:
            self._since_us = work.now_us
        while self._state.mortal_news:
            number = self._state.mortal_news.pop()
            topic = self._state.mortal.get(number)
            if topic is not None and not topic.catalogue_number:
                self.agenda.plan(number, self._end_us(topic))
        for _ in range(_LOOKED_PER_STEP):
            idle = self.agenda.pop(work.now_us)
            if idle is None:
                return False
            self._look_at(work, idle)
        return self.agenda.next_us() <= work.now_us

    def read(self, work: Work, query: ReadIdle) -> Done:
        """Entries of the catalogue that nobody uses here: a list of `IdleTopic`, by number."""
        if self._since_us is None:
            self._since_us = work.now_us
        entries = {
            topic.catalogue_number: topic
            for topic in self._state.mortal.values()
            if topic.catalogue_number > query.after
        }
        found: list[IdleTopic] = []
        in_use = self._leased_topics()
        for number in sorted(entries):
            topic = entries[number]
            if self._end_us(topic) > work.now_us or topic.number in in_use:
                continue
            if not self._engine.turns.waits(topic):
                since_us = self._end_us(topic) - topic.settings.idle_age_us
                found.append(IdleTopic(number, topic.name, since_us))
            if len(found) == _TOLD_PER_STEP:
                break
        return Done(found)

    def _leased_topics(self) -> set[int]:
        leases = self._state.memory.leases
        return set(np.unique(leases.topic[leases.live()]).tolist())

    def left(self, work: Work, keys: set[Key]) -> None:
        """A session that waited for these topics' messages is gone: until now it used them."""
        for number, _ in keys:
            topic = self._state.mortal.get(number)
            if topic is not None:
                topic.active_us = max(topic.active_us, work.now_us)

    def _look_at(self, work: Work, number: int) -> None:
        topic = self._state.mortal.get(number)
        if topic is None or topic.catalogue_number:
            return
        if self._in_use(topic):
            self.agenda.plan(number, work.now_us + topic.settings.idle_age_us)
        elif (end_us := self._end_us(topic)) > work.now_us:
            self.agenda.plan(number, end_us)
        else:
            self._engine.delete_topic(work, topic)

    def _in_use(self, topic: Topic) -> bool:
        leases = self._state.memory.leases
        return self._engine.turns.waits(topic) or bool(
            (leases.topic[leases.live()] == topic.number).any()
        )

    def _end_us(self, topic: Topic) -> int:
        return max(topic.active_us, self._since_us or 0) + topic.settings.idle_age_us
