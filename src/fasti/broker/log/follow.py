"""Whoever follows a log: rows as they become durable, partition by partition in turn.

Between pages it sleeps on the feed, which is told of every durable append.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.follower import IDLE_S, Follower, Header, Written
from fasti.broker.log.reads import Begin
from fasti.protocol.schemas import LOG_ROWS

if TYPE_CHECKING:
    from fasti.broker.service import Service


_FIELDS: Header = {
    "topic": str,
    "partition": None,
    "offset": None,
    "time_us": None,
    "start": "",
    "offsets": {},
}


class LogFollower(Follower):
    """One reader that follows one topic, from where its descriptor says."""

    schema = LOG_ROWS

    call = "follow"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        fields = requests.checked(descriptor, **_FIELDS)
        self._topic: str = fields["topic"]
        super().__init__(service, caller, service.placement.shard_of(self._topic))
        self._cursors = Begin(service, fields).cursors()
        self._followed = self.shard.feed.follow(service.topic(self._topic).number)

    @property
    def topic(self) -> str:
        """Whose rows it reads."""
        return self._topic

    def wake(self) -> None:
        """To look whether it is over."""
        self._followed.wake()

    def leave(self) -> None:
        """One fewer follows."""
        self.shard.feed.unfollow(self._followed)

    def pages(self) -> Iterator[Written]:
        """Rows of all partitions, in turn."""
        # Of each partition, how much was seen to have grown when it was last read to its end.
        looked = dict.fromkeys((cursor.partition for cursor in self._cursors), -1)
        while True:
            # Before looking: what grows from now on is not missed.
            seen = self._followed.seen
            rest = False
            for cursor in self._cursors:
                if not self._followed.grown(cursor.partition, looked[cursor.partition]):
                    continue
                for batch in cursor.page():
                    if self.ended:
                        return
                    header = self.said(kind="rows", partition=cursor.partition, end=cursor.end)
                    yield header, batch
                if cursor.moving or cursor.offset < cursor.end:
                    rest = True
                else:
                    looked[cursor.partition] = seen
            if self.ended:
                return
            if not rest and not self._followed.wait(seen, IDLE_S, self.is_over):
                yield self.said(kind="idle"), None
