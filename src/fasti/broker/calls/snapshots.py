"""Snapshots that readers hold: taken, found again by number or name, kept while they are used.

A snapshot is for reads in several pieces, by several readers, maybe again and again: all see one
state, of one position of the change feed. It is kept for a while after its last use (`keep_us`) and
then let go; whoever comes later is told that it is gone, never shown anything else.

Readers that can't tell each other a number agree on a name: the first to come takes the snapshot,
the others find it. A name is used once; when its snapshot is gone, so is the name. Names don't
outlive the broker's process, whose *life* has a name too: a reader that comes again tells in which
life it came first, and isn't given another snapshot in a later one.

Any thread. Reading needs no lock: a snapshot that is let go under a reader says so itself.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.shares import SeenShare
from fasti.core.commands import DropSnapshot, KeepSnapshot, TakeSnapshot
from fasti.core.rows.snapshot import Snapshot
from fasti.errors import Closed, Gone, InvalidArgument, Moved
from fasti.model import DAY_US, MINUTE_US, SECOND_US

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard

KEEP_US = 10 * MINUTE_US
# For readers that come again, when all parts were read.
LINGER_US = MINUTE_US
_KEEP_MIN_US, _KEEP_MAX_US = SECOND_US, DAY_US
_NAME_BYTES_MAX = 200
_PAST_NAMES = 10_000
_PARTS_MAX = 100_000


@dataclass(slots=True)
class Held:
    """A snapshot that readers use."""

    snapshot: Snapshot
    shard: Shard
    keep_us: int
    # Of the caller that took it.
    caller: str
    name: str = ""
    readers: int = 0
    # The partitions that are still to be read, of one that goes when all were.
    unread: set[int] | None = field(default=None)
    # The parts that are still to be read, of one that is kept for less when all were.
    parts_left: set[int] = field(default_factory=set)
    linger_us: int = LINGER_US

    def told(self) -> Header:
        """What a ticket says of it."""
        return {
            "snapshot": self.snapshot.number,
            "position": self.snapshot.position,
            "shard": str(self.shard.feed_name),
            "deadline_us": self.snapshot.deadline_us,
        }


class Snapshots:
    """All that readers hold of one broker."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._names: dict[str, int] = {}
        self._past: OrderedDict[str, None] = OrderedDict()
        # Taken again by a thread that has it if garbage is collected there, and with it a read that
        # was given up.
        self._lock = threading.RLock()
        self.life = secrets.token_hex(8)
        # Whoever takes one under a name must not be overtaken.
        self._taking = threading.Lock()
        bound = service.shares.bound("open snapshots", "snapshots_max")
        self.share = service.shares.snapshots = SeenShare(bound, self.by_caller)

    def by_caller(self) -> dict[str, int]:
        """How many each caller took that are still there."""
        with self._lock:
            return dict(Counter(held.caller for held in self._held.values() if self.is_here(held)))

    def take(
        self,
        caller: Caller,
        shard: Shard,
        keep_us: int = KEEP_US,
        name: str = "",
        life: str = "",
        readers: int = 0,
        linger_us: int = LINGER_US,
    ) -> Held:
        """A snapshot of now, or the one of that name.

        When so many `readers` have read their part to its end, it is kept for `linger_us` only.
        Raises `gone` if the name's snapshot is, or may be: if the reader came first in another `life`
        of the broker.
        """
        _check(keep_us, name, life)
        _check(linger_us, name, life, "linger_us")
        if not 0 <= readers <= _PARTS_MAX:
            raise InvalidArgument("too many readers", field="readers", limit=_PARTS_MAX)
        with self._taking:
            if name:
                found = self._named(name, life not in ("", self.life))
                if found is not None:
                    return self.used(found)
            self._make_room(caller)
            held = self._taken(caller, shard, keep_us, name)
            held.parts_left, held.linger_us = set(range(readers)), min(keep_us, linger_us)
            with self._lock:
                self._held[held.snapshot.number] = held
                if name:
                    self._names[name] = held.snapshot.number
            return held

    def find(self, number: int, position: int | None = None) -> Held:
        """The one that a ticket names. Raises `gone`."""
        with self._lock:
            held = self._held.get(number)
        if held is None or not self.is_here(held) or position not in (None, held.snapshot.position):
            if held is not None:
                self._forget(held)
            raise gone(number)
        return self.used(held)

    @contextmanager
    def planning(
        self, caller: Caller, shard: Shard, number: int, position: int | None, keep_us: int
    ) -> Iterator[Held]:
        """The snapshot of a plan: one that is there, or a new one, dropped if there is no plan."""
        if number:
            yield self.find(number, position)
            return
        held = self.take(caller, shard, keep_us)
        try:
            yield held
        except BaseException:
            self.drop(held.snapshot.number)
            raise

    @contextmanager
    def for_one_listing(self, caller: Caller, topic: str) -> Iterator[Held]:
        """A snapshot of one topic that goes with its only reader. Raises what the engine refuses."""
        shard = self._service.placement.shard_of(topic)
        held = self._taken(caller, shard, KEEP_US, topic=topic)
        try:
            yield held
        finally:
            # Not waited for: a reader may be collected as garbage in any thread.
            _ask_to_drop(shard, held.snapshot)

    def is_here(self, held: Held) -> bool:
        """Whether it can be read; after a recovery the engine is another one."""
        known = held.shard.engine.snapshots
        return known.get(held.snapshot.number) is held.snapshot

    def used(self, held: Held) -> Held:
        """It is kept for longer, as somebody uses it."""
        until_us = self._service.clock.now_us() + held.keep_us
        if until_us - held.snapshot.deadline_us > held.keep_us // 8:
            self._keep_until(held, until_us)
        with self._lock:
            if held.snapshot.number in self._held:
                self._held.move_to_end(held.snapshot.number)
        return held

    def _keep_until(self, held: Held, until_us: int) -> None:
        engine = held.shard.engine
        # Another engine may have another snapshot under this number: a checkpoint's, at worst.
        if engine.snapshots.get(held.snapshot.number) is held.snapshot:
            held.shard.ask(KeepSnapshot(held.snapshot.number, until_us), engine)

    def reading(
        self,
        held: Held,
        batches: Iterator[pa.RecordBatch],
        partition: int | None,
        part: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The batches; while they are read nobody makes room at the snapshot's expense.

        A snapshot that a plan took for one reading goes when every partition was read.
        """
        with self._lock:
            held.readers += 1
        try:
            yield from batches
        finally:
            with self._lock:
                held.readers -= 1
        if part in held.parts_left:
            held.parts_left.discard(part)
            if not held.parts_left:
                held.keep_us = held.linger_us
                self._keep_until(held, self._service.clock.now_us() + held.keep_us)
        if held.unread is not None and partition is not None:
            held.unread.discard(partition)
            if not held.unread:
                self.drop(held.snapshot.number)

    def drop(self, number: int) -> None:
        """Lets a snapshot go; one that is gone is fine."""
        with self._lock:
            held = self._held.get(number)
        if held is not None:
            self._forget(held)
            drop_snapshot(held.shard, held.snapshot)

    def _named(self, name: str, outlived: bool) -> Held | None:
        with self._lock:
            number = self._names.get(name)
            held = None if number is None else self._held.get(number)
            past = name in self._past
        if held is not None and not self.is_here(held):
            self._forget(held)
            held, past = None, True
        if held is None and (past or outlived):
            raise Gone(
                f"the snapshot {name!r} is gone: it was dropped, the broker was started again, or "
                "nobody read it for too long",
                details={"name": name},
            )
        return held

    def _taken(
        self, caller: Caller, shard: Shard, keep_us: int, name: str = "", topic: str = ""
    ) -> Held:
        """Its position is told, like any reply, when all in it is durable."""
        if self._service.stopping:
            raise self._service.unavailable()
        reply = shard.call(TakeSnapshot(shard.clock.now_us() + keep_us, topic))
        if reply.error is not None:
            raise reply.error
        return Held(reply.value, shard, keep_us, caller.name, name)

    def _make_room(self, caller: Caller) -> None:
        """One that has a name and that nobody reads, the longest unused, goes: the caller's own,
        else one of those who have more than it.
        """
        with self._lock:
            over = [held for held in self._held.values() if not self.is_here(held)]
        for held in over:
            self._forget(held)
        while not self.share.has_room(caller):
            counts = self.by_caller()
            mine = counts.get(caller.name, 0)
            others = {name for name, count in counts.items() if count > mine}
            if mine >= self.share.bound.share_of(caller):
                others = set()
            with self._lock:
                idle = [held for held in self._held.values() if held.name and not held.readers]
            own = next((held for held in idle if held.caller == caller.name), None)
            gone = own or next((held for held in idle if held.caller in others), None)
            if gone is None:
                raise self.share.refuse(caller, mine)
            self.drop(gone.snapshot.number)

    def _forget(self, held: Held) -> None:
        with self._lock:
            self._held.pop(held.snapshot.number, None)
            if held.name:
                self._names.pop(held.name, None)
                self._past[held.name] = None
                if len(self._past) > _PAST_NAMES:
                    self._past.popitem(last=False)


def drop_snapshot(shard: Shard, snapshot: Snapshot) -> None:
    """Lets a snapshot go, and waits until it is gone."""
    with suppress(Closed, Moved):
        dropped = _ask_to_drop(shard, snapshot)
        if dropped is not None:
            dropped.result()


def _ask_to_drop(shard: Shard, snapshot: Snapshot) -> Future[Any] | None:
    """None if it is gone already."""
    engine = shard.engine
    # Another engine may have another snapshot under this number: a checkpoint's, at worst.
    if engine.snapshots.get(snapshot.number) is snapshot:
        with suppress(Closed, Moved):
            return shard.ask(DropSnapshot(snapshot.number), engine)
    return None


def gone(number: int) -> Gone:
    """What is said of a snapshot that is not there any more, or never was."""
    return Gone(
        f"snapshot {number} is gone: it was dropped, or it was not read for too long",
        details={"snapshot": number},
    )


def _check(keep_us: int, name: str, life: str, field: str = "keep_us") -> None:
    if not _KEEP_MIN_US <= keep_us <= _KEEP_MAX_US:
        raise InvalidArgument(
            "a snapshot is kept for 1 second to 1 day", field=field, limit=_KEEP_MAX_US
        )
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise InvalidArgument(
            f"a snapshot's name has at most {_NAME_BYTES_MAX} bytes",
            field="name",
            limit=_NAME_BYTES_MAX,
        )
    if life and not name:
        raise InvalidArgument("life goes with a name", field="life")


def _take_snapshot(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields: dict[str, Any] = requests.checked(
        header, name="", life="", keep_us=KEEP_US, readers=0, linger_us=LINGER_US
    )
    held = service.snapshots.take(caller, service.placement.catalogue, **fields)
    return {**held.told(), "life": service.snapshots.life}, []


def _drop_snapshot(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    service.snapshots.drop(requests.checked(header, snapshot=int)["snapshot"])
    return {}, []


ACTIONS: dict[str, Action] = {"take_snapshot": _take_snapshot, "drop_snapshot": _drop_snapshot}
TRANSACTION_PARTS: dict[str, PartOf] = {}
