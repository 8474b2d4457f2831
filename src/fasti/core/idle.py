"""Topics that go by themselves when nobody has used them for a while: the inboxes of callers.

A topic with an `idle_age` is deleted, with everything in it, when for that long nothing happened in
it, nobody waited for its messages and none was leased. What happened is told by events and by
sessions that end (`Topic.active_us`, kept by checkpoints); that somebody waits is noticed when the
topic is looked at, and then it is looked at again a whole age later. After a start every topic has its full age again,
because nobody could use it while the broker was away.

Looking is planned in a heap, so topics cost nothing in between. The sequencer's thread only.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from fasti.core.commands import DeleteTopic
from fasti.core.state import Topic
from fasti.core.timeline.partition import FOREVER
from fasti.core.work import Work

if TYPE_CHECKING:
    from fasti.core.engine import Engine

# So many topics are looked at in one step.
_LOOKED_PER_STEP = 64


class Idle:
    """Which topics have an end, and when to look at each of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state
        # A heap of (moment, topic), and of each topic the moment that counts.
        self._planned: list[tuple[int, int]] = []
        self._look_us: dict[int, int] = {}
        # Nobody could use anything before this: when the first step was.
        self._since_us: int | None = None

    def look(self, work: Work) -> bool:
        """Deletes what nobody uses; True if there is more to do at once."""
        if self._since_us is None:
            self._since_us = work.now_us
        while self._state.mortal_news:
            number = self._state.mortal_news.pop()
            if number in self._state.mortal:
                self._plan(number, self._end_us(self._state.mortal[number]))
        looked = 0
        while self._planned and self._planned[0][0] <= work.now_us:
            if looked == _LOOKED_PER_STEP:
                return True
            at_us, number = heapq.heappop(self._planned)
            if self._look_us.get(number) == at_us:
                del self._look_us[number]
                looked += 1
                self._look_at(work, number)
        return False

    def left(self, work: Work, numbers: set[int]) -> None:
        """A session that waited for these topics' messages is gone: until now it used them."""
        for number in numbers:
            topic = self._state.mortal.get(number)
            if topic is not None:
                topic.active_us = max(topic.active_us, work.now_us)

    def next_us(self) -> int:
        """When the next topic is to be looked at."""
        while self._planned and self._look_us.get(self._planned[0][1]) != self._planned[0][0]:
            heapq.heappop(self._planned)
        return self._planned[0][0] if self._planned else FOREVER

    def _look_at(self, work: Work, number: int) -> None:
        topic = self._state.mortal.get(number)
        if topic is None:
            return
        if self._in_use(topic):
            self._plan(number, work.now_us + topic.settings.idle_age_us)
        elif (end_us := self._end_us(topic)) > work.now_us:
            self._plan(number, end_us)
        else:
            self._engine.delete_topic(work, DeleteTopic(topic.name))

    def _in_use(self, topic: Topic) -> bool:
        leases = self._state.memory.leases
        return self._engine.turns.waits(topic) or bool(
            (leases.topic[leases.live()] == topic.number).any()
        )

    def _end_us(self, topic: Topic) -> int:
        return max(topic.active_us, self._since_us or 0) + topic.settings.idle_age_us

    def _plan(self, number: int, at_us: int) -> None:
        if self._look_us.get(number) != at_us:
            self._look_us[number] = at_us
            heapq.heappush(self._planned, (at_us, number))
