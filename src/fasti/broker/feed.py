"""What has become durable, for those who follow: log readers and watchers.

The committer's thread tells (`durable`, `reset`); any thread waits. A topic that nobody follows
costs one look-up for each frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fasti.broker.kv.rings import Rings
from fasti.core.log.events import LogAppended
from fasti.core.replies import Frame
from fasti.runtime import Runtime

# No topic's number: who follows this follows all that happens.
EVERYTHING = 0


class Followed:
    """A log that somebody follows: which of its partitions have grown. Any thread."""

    __slots__ = ("_changed", "_everywhere", "_grown", "followers", "seen", "topic")

    def __init__(self, topic: int, changed: threading.Condition) -> None:
        self.topic, self._changed = topic, changed
        self.followers = 0
        # How often it has grown: to be read before looking, and given to `wait` after it.
        self.seen = 0
        # What `seen` was when a partition last grew, and when all may have.
        self._grown: dict[int, int] = {}
        self._everywhere = 0

    def grown(self, partition: int, seen: int) -> bool:
        """Whether the partition may have more than when `seen` was read."""
        return self._grown.get(partition, 0) > seen or self._everywhere > seen

    def wait(self, seen: int, timeout: float, over: Callable[[], bool]) -> bool:
        """Sleeps until it has grown since, or `over` holds; False if neither in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.seen != seen or over(), timeout)

    def grow(self, partition: int | None) -> None:
        """A partition has more rows; None: any may have."""
        with self._changed:
            self.seen += 1
            if partition is None:
                self._everywhere = self.seen
            else:
                self._grown[partition] = self.seen
            self._changed.notify_all()

    def wake(self) -> None:
        """Whoever waits looks whether it is over."""
        with self._changed:
            self._changed.notify_all()


class Feed:
    """One per shard."""

    def __init__(self, runtime: Runtime) -> None:
        self._condition = runtime.condition
        self._lock = threading.Lock()
        # By the topic's number.
        self._followed: dict[int, Followed] = {}
        # Those who follow logs or watch key-value topics.
        self.watchers = 0
        # The latest changes of key-value topics.
        self.rings = Rings(runtime)

    # The committer's thread

    def durable(self, frames: Sequence[Frame]) -> None:
        """These are in the journal, in this order."""
        if self.rings.by_topic:
            self.rings.durable(frames)
        if not self._followed:
            return
        if frames:
            self.synced()
        for frame in frames:
            for event in frame.events:
                if type(event) is LogAppended:
                    followed = self._followed.get(event.topic)
                    if followed is not None:
                        followed.grow(event.partition)

    def synced(self) -> None:
        """There is more that is durable. With durability `interval` that is told apart."""
        everything = self._followed.get(EVERYTHING)
        if everything is not None:
            everything.grow(None)

    def reset(self) -> None:
        """The engine was dropped: what is durable is what the journal has."""
        self.rings.reset()
        for followed in list(self._followed.values()):
            followed.grow(None)

    # Any thread

    def enter(self) -> None:
        """One more who follows or watches."""
        with self._lock:
            self.watchers += 1

    def leave(self) -> None:
        """One fewer."""
        with self._lock:
            self.watchers -= 1

    def follow(self, topic: int) -> Followed:
        """Somebody follows the log from now on, until `unfollow`."""
        self.enter()
        with self._lock:
            followed = self._followed.get(topic)
            if followed is None:
                followed = self._followed[topic] = Followed(topic, self._condition())
            followed.followers += 1
            return followed

    def unfollow(self, followed: Followed) -> None:
        """One fewer follows it."""
        with self._lock:
            followed.followers -= 1
            if not followed.followers:
                self._followed.pop(followed.topic, None)
        self.leave()
