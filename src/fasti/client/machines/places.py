"""The places of one consumer whose messages come from several shards, each by a session of its own.

How many messages may be here unfinished is one number for all of them: how quickly they are worked off
says nothing about where they came from. So the sessions share one `Window`, and its places are shared
out:

* Each session may have an equal part of the places, at least one. What it asks for it has *standing* at
  its shard: a shard that has nothing now can send its next message at once.
* Credit that a shard has not used within `IDLE_S` stands there and takes no place from others: where
  only one shard has messages, its session gets all places.
* A session that has its part gets more only of what no other one is waiting for.
* Where there are fewer places than sessions, those that were asked longest ago come first; if such a shard
  has nothing, all others are asked.

So it may be that more messages come than there are places, one for each shard's standing credit. What
exceeds a number that user code has given goes back unopened, at once; a window that adapts has what is not
opened within `STALL_S` go back, as with one session. Stalling is the whole consumer's: while user code opens
messages of one shard those of the others are not hoarded, for nothing here waits long behind what came later
(`holdings.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fasti.client.machines.credit import STALL_S, Credit, Window
from fasti.client.machines.holding import FAR_US, Custody, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.returns import Return, merged

if TYPE_CHECKING:
    from fasti.client.machines.consumer import ConsumerMachine

# A shard that has sent nothing for this long after it was asked has nothing.
IDLE_S = 0.005


class Places:
    """Of one consumer. For one caller at a time: a step of any of its machines is one of all."""

    def __init__(self, prefetch: int | None) -> None:
        self.window = Window(prefetch)
        self.members: list[SharedCredit] = []
        # How often user code took something; nothing is asked for while it takes nothing.
        self.opened = 0
        self.stalled = False
        self._asked = 0
        # Since when there is a free place.
        self._free_since: float | None = None

    # Sharing out

    @property
    def scarce(self) -> bool:
        """Whether there are fewer places than sessions."""
        return self.window.size < len(self.members)

    @property
    def share(self) -> int:
        """How many places each session may have for itself."""
        return max(1, self.window.size // max(1, len(self.members)))

    def free_for(self, me: SharedCredit, now_s: float) -> int:
        """How many more messages a session may ask for now.

        It may wake others that have waited longer. `look_at` of the session says when this may change
        although nothing has happened.
        """
        me.look_at = math.inf
        if self.stalled:
            return 0
        free = self.window.size - self._occupied()
        if free <= 0:
            self._free_since = None
            return 0
        if self._free_since is None:
            self._free_since = now_s
        awaited, look_at = 0, math.inf
        for member in self.members:
            if member.used:
                member.used, member.asked_at = False, now_s
            if member.count and now_s < member.asked_at + IDLE_S:
                awaited += member.count
                look_at = min(look_at, member.asked_at + IDLE_S)
            elif member.count > self.share and member is not me:
                # It had more than its part and has no use for it: nobody shall have as much twice.
                member.take_back_own()
        waiting = [member for member in self.members if member.is_waiting]
        if not self.scarce:
            free -= awaited
            mine = self._fair(me, free, now_s)
        elif now_s >= self._free_since + IDLE_S:
            # Those that were asked first have nothing.
            free, mine = len(waiting), int(not me.count)
        else:
            free -= awaited
            look_at = self._free_since + IDLE_S
            waiting.sort(key=lambda member: member.asked_number)
            mine = int(me in waiting[: max(0, free)])
        if free > mine:
            for member in waiting:
                if member is not me:
                    member.notify()
        if not mine and not me.count:
            me.look_at = look_at
        return mine

    def _fair(self, me: SharedCredit, free: int, now_s: float) -> int:
        """Its own part, or what no other one waits for."""
        if free <= 0:
            return 0
        share = self.share
        mine = me.unfinished + me.count
        if mine < share:
            return min(free, share - mine)
        if me.count and now_s >= me.asked_at + IDLE_S:
            # Its shard has nothing: what stands there is enough.
            return 0
        owed = sum(
            max(0, share - member.unfinished)
            for member in self.members
            if member is not me and member.is_waiting
        )
        return max(0, free - owed)

    def asked(self, me: SharedCredit, now_s: float) -> None:
        """A session asks for messages."""
        self._asked += 1
        me.asked_number, me.asked_at = self._asked, now_s

    def _occupied(self) -> int:
        """How many places are taken. Where they are scarce and adapt, what is not due yet takes none:
        it would keep what is due on other shards from coming.
        """
        if self.window.adapts and self.scarce:
            return sum(member.due_unfinished() for member in self.members)
        return sum(member.unfinished for member in self.members)

    def surplus(self) -> int:
        """How many of those that have just come have no place."""
        surplus = self._occupied() - self.window.size
        if surplus >= 0:
            self._free_since = None
        return 0 if self.window.adapts and not self.scarce else max(0, surplus)

    # How user code fares

    def take(self) -> None:
        """User code takes a message."""
        self.opened += 1
        if self.stalled:
            self.resume()

    def resume(self) -> None:
        """User code takes or finishes messages again."""
        if self.stalled:
            self.stalled = False
            for member in self.members:
                member.must_stall = False
                member.notify()

    def stall(self) -> None:
        """Nothing is opened: every session gives back what it has not opened."""
        in_hand = sum(member.in_hand() for member in self.members)
        self.window.stall(in_hand)
        if not self.stalled:
            self.stalled = True
            for member in self.members:
                member.must_stall = True
                member.notify()

    def reach(self) -> None:
        """A taker waits, and nothing waits to be returned by one of the sessions."""
        if not any(member.holds_any for member in self.members):
            self.window.reach(sum(member.unfinished for member in self.members))

    def take_back(self) -> None:
        """What all sessions have asked for is too much now."""
        for member in self.members:
            member.take_back_own()


class SharedCredit(Credit):
    """The credit of one of several sessions; `join` makes it one of them."""

    shared = True

    def __init__(self, places: Places, count_max: int) -> None:
        super().__init__(None, count_max, places.window)
        self._places = places
        self.asked_at, self.asked_number = -math.inf, 0
        self.must_stall = False
        # Something has come by it since this was looked at last.
        self.used = False
        self._machine: ConsumerMachine | None = None
        self._wake: Callable[[], None] = lambda: None
        self._now_us: Callable[[], int] = lambda: 0

    def join(
        self, machine: ConsumerMachine, wake: Callable[[], None], now_us: Callable[[], int]
    ) -> None:
        """Called once, before the session begins. `wake` wakes its thread, in a step of any machine's;
        `now_us` is the clock of its broker.
        """
        self._machine, self._wake, self._now_us = machine, wake, now_us
        self._places.members.append(self)

    # What the others see

    @property
    def machine(self) -> ConsumerMachine:
        """Whose credit it is."""
        assert self._machine is not None, "it has joined"
        return self._machine

    @property
    def unfinished(self) -> int:
        """How many messages are here by this session, in hand and unopened."""
        return self.machine.custody.unfinished

    def due_unfinished(self) -> int:
        """The same without those that are not due yet."""
        return self.unfinished - self.machine.holding.rows_after(self._now_us())

    def in_hand(self) -> int:
        """How many of them user code has."""
        return self.unfinished - self.machine.custody.unopened

    @property
    def holds_any(self) -> bool:
        """Whether one is here that was not taken."""
        return self.machine.holding.holds_any

    @property
    def is_waiting(self) -> bool:
        """Whether it would ask for messages, and none can come as long as it does not."""
        return not self.count and self.machine.takes and not self._withdrawal

    def notify(self) -> None:
        """There may be something to ask for, or to give back."""
        self.machine.work = True
        self._wake()

    def take_back_own(self) -> None:
        """What was asked for is too much now."""
        if self.count > 0 and self.machine.known:
            self._withdraw = True
            self.notify()

    # What its machine asks

    @property
    def share(self) -> int:
        """How many messages may be here by this session, if others have as many."""
        return self._places.share

    def wanted(self, unfinished: int, now_s: float) -> int:
        """How many more messages may come."""
        self.look_at = math.inf
        if self._withdrawal:
            return 0
        return min(self._places.free_for(self, now_s), self._count_max - self.count)

    def ask(self, unfinished: int, now_s: float) -> int:
        """So many are asked for now."""
        credit = super().ask(unfinished, now_s)
        if credit:
            self._places.asked(self, now_s)
        return credit

    def spend(self, rows: int) -> None:
        """So many messages came by it."""
        super().spend(rows)
        self.used = True

    def surplus(self) -> int:
        """How many of those that have just come have no place; no more are to come then."""
        surplus = self._places.surplus()
        if surplus:
            self.take_back_own()
        return surplus

    def ran_out(self) -> bool:
        """A message is wanted and there is none. True if acks should bring credit at once."""
        self._places.resume()
        super().ran_out()
        return self.count < self.share // 2 or self.share == 1

    def measure(self, segment: tuple, now_us: int) -> None:  # type: ignore[type-arg]
        """Fits the window to how long the last of those that are returned was here."""
        self._places.resume()
        super().measure(segment, now_us)

    def _take_back(self) -> None:
        self._places.take_back()

    def reach(self, unfinished: int) -> None:
        """A taker waits, and nothing waits to be returned: if all is in hand there are more hands."""
        self._places.reach()

    def stall_s(self, holding: Holding, now: Now) -> float:
        """How long until what is due counts as not opened; infinite if there is nothing."""
        if self.must_stall:
            return 0.0
        if not self.window.adapts:
            return math.inf
        first, due_s = holding.first_unopened(now)
        if first is None or holding.takers:
            self._unopened, self._unopened_at = None, now.s
            return due_s + STALL_S
        marked = (*first, self._places.opened)
        if marked != self._unopened:
            self._unopened, self._unopened_at = marked, now.s
            return STALL_S
        return self._unopened_at + STALL_S - now.s

    def stall(self, custody: Custody) -> list[Return]:
        """What others may have, because it is not opened here."""
        self._places.stall()
        self.must_stall = False
        self._unopened = None
        self._withdraw = self.count > 0
        return merged(custody.overdue(FAR_US))
