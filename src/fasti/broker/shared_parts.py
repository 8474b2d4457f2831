"""What the shards of one process have in common: the clock, the threads and their watchdog, limits, turns.

A shard that is alone has one for itself; a host (host.py) makes one for all its shards.
"""

from __future__ import annotations

import threading

from fasti.broker.clock import EngineClock
from fasti.broker.journal_budget import JournalBudget
from fasti.broker.one_at_a_time import OneAtATime
from fasti.broker.threads import Threads
from fasti.config import ShardSettings
from fasti.runtime import Runtime, SystemRuntime

# The most that a shard waits for the clock before it begins.
_CATCH_UP_S = 1.0


class SharedParts:
    """Made before the first shard is opened, stopped behind the last."""

    def __init__(
        self, settings: ShardSettings, runtime: Runtime | None = None, parks: bool = False
    ) -> None:
        """`parks`: there are many shards, and those that have nothing to do have no threads."""
        self.runtime: Runtime = runtime or SystemRuntime()
        self.settings = settings
        self.clock = EngineClock(self.runtime.clock, settings)
        self.threads = Threads(settings.stall_us / 1e6, self.runtime, parks)
        # One engine steps at a time: all are one interpreter's, and threads that take it from each other in
        # the middle of a step cost a tenth more.
        self.stepping = threading.Lock()
        self.journals = JournalBudget(settings)
        # One checkpoint and one scrub at a time: their paces are the disk's.
        self.checkpoints, self.scrubs = OneAtATime(), OneAtATime()
        # Whether the first shards are open: callers go by the clock from then on.
        self.serves = False

    def start(self) -> None:
        """The watchdog begins."""
        self.serves = True
        self.threads.start()

    def wait_until(self, at_us: int) -> bool:
        """For a shard that comes from a process whose clock was ahead: returns when this one is as far.

        It is not set: the shards that are here were promised that it doesn't leap. False if it is too far.
        """
        while 0 < (wait_s := self.clock.seconds_until(at_us)) <= _CATCH_UP_S:
            self.runtime.sleep(wait_s)
        return wait_s <= 0

    def stop(self) -> None:
        """When no shard is open any more."""
        self.threads.stop()
