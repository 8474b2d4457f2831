"""Who leads a shard, as far as one broker knows: from beats, and from what it reads in the stream.

The higher epoch wins, whoever says so and in whatever order it is heard. A shard has no leader if the
broker of the highest epoch

- doesn't live,
- has yielded: its beats of that epoch, which may still be under way, don't bring it back,
- or says for `LAPSE_MS` that it is neither leader nor candidate: it gave up after its start.

A leader of a lower epoch is no leader: it will find out with its next append.
"""

from __future__ import annotations

from fasti.cluster.member_records import ShardBeat
from fasti.cluster.writer_actions import Role

LAPSE_MS = 1_000


class ShardClaim:
    """The leader of one shard. One thread at a time."""

    __slots__ = ("_denied_since_ms", "epoch", "heir", "holder", "leaderless_since_ms", "yielded")

    def __init__(self) -> None:
        # The broker with the highest epoch; None: none was heard of.
        self.holder: str | None = None
        self.epoch = 0
        self.yielded = False
        # To whom the last leader yielded.
        self.heir: str | None = None
        self._denied_since_ms: int | None = None
        # Since when nobody leads; None: somebody does, or it was not looked at yet.
        self.leaderless_since_ms: int | None = None

    def start(self, name: str, epoch: int) -> None:
        """`LeaderStarted` was read in the stream, or its leader's beat was heard."""
        if epoch > self.epoch:
            self.holder, self.epoch = name, epoch
            self.yielded, self.heir, self._denied_since_ms = False, None, None

    def give_up(self, epoch: int, heir: str | None) -> None:
        """`LeaderYielded` was read: of the epoch that holds the shard, or of one that is over."""
        if epoch >= self.epoch:
            self.epoch, self.yielded, self.heir = epoch, True, heir

    def hear(self, name: str, item: ShardBeat | None, now_ms: int) -> None:
        """A member's beat, with or without this shard."""
        role = item.role if item is not None else Role.IDLE
        if item is not None and role is Role.LEADER:
            self.start(name, item.epoch)
        if name != self.holder:
            return
        if role in (Role.LEADER, Role.CANDIDATE):
            self._denied_since_ms = None
        elif self._denied_since_ms is None:
            self._denied_since_ms = now_ms

    def lapse(self, name: str, now_ms: int) -> None:
        """A member has a new incarnation: whatever it led, it leads no more."""
        if name == self.holder:
            self._denied_since_ms = now_ms - LAPSE_MS

    def leader(self, alive: set[str], now_ms: int) -> str | None:
        """Who leads now. Keeps since when nobody does."""
        denied = self._denied_since_ms is not None and now_ms - self._denied_since_ms >= LAPSE_MS
        if self.holder in alive and not self.yielded and not denied:
            self.leaderless_since_ms = None
            return self.holder
        if self.leaderless_since_ms is None:
            self.leaderless_since_ms = now_ms
        return None
