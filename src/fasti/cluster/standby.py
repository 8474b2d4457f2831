"""A shard that another broker leads, followed: an engine that is as far as the journal, ready to lead.

It begins with the manifest that the pointer names, applies packs as it hears that there are more (the leader's
beats say how far its stream is, and which manifest is in force), and goes over to each new manifest before what
that one put out of force is deleted. It asks the servers for nothing while nothing is new: no consumers, no
polling. `hand_over` gives everything to the storage of a broker that takes the shard over.

What it meets that can't be right (a hole, damage, a frame that contradicts) it does not skip: it begins anew,
after a pause that grows. The same if what it would read next was trimmed while it slept.

`step` does a bounded piece, of about `PIECE_S`. One thread at a time, of the caller's.

**It may be read from** (`read`, by any thread), while it is loaded and not on its way to another manifest: what
the engine shows between two frames is what the journal's leader had made durable at some moment. Frames are
applied under a lock, which is held for one command's frames or one read, never while NATS is waited for. A read that comes
at the wrong time is told so at once. A shard that is opened on this engine has it to itself from the moment on at
which it leads: until then, however long the servers take, it is read from as before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fasti.cluster.followed_journal import FollowedJournal
from fasti.cluster.leadership import Leadership
from fasti.cluster.piece_reader import PieceReader
from fasti.cluster.pieces import Pieces
from fasti.cluster.pointer import PointerRecord
from fasti.cluster.stream_storage import ShardStreams, StreamStorage
from fasti.cluster.writer_actions import Role
from fasti.core import still_reads
from fasti.core.engine import Engine
from fasti.core.rows.snapshot import Snapshot
from fasti.errors import Corruption, FastiError, Gone, NotFound
from fasti.model import back_off
from fasti.storage.follower import Follower, exhaust
from fasti.storage.frames import StoredFrame
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads

_log = logging.getLogger("fasti.cluster.standby")

# About how long a step takes, unless NATS is slow.
PIECE_S = 0.02
# Packs that are read before their frames are applied; as much as memory has them until then.
_PACKS = 64
# Of packs in memory.
_CACHE_BYTES = 8 << 20
# After trouble: so long at first, and at most.
_PAUSE_S, _PAUSE_MAX_S = 0.5, 30.0


class NotReadable(Exception):
    """It can't be read from now: it loads, goes over to another manifest, or leads."""


class Standby:
    """Of one shard. `hear` and `read` may be called by any thread, and the properties by any."""

    def __init__(
        self, shard: int, storage: StreamStorage, make_engine: Callable[[], Engine]
    ) -> None:
        self.shard, self._storage, self._make_engine = shard, storage, make_engine
        # How far the leader is, by what was heard; of the stream, and its manifest's version.
        self._heard = self._heard_version = 0
        # Whether to look for the stream's end, whatever was heard.
        self._to_the_end = False
        # How often it has begun, and gone over to another manifest.
        self.loads = self.installs = 0
        self._failures = 0
        self._wait_until = 0.0
        # When the leader was no further than was heard; and what a reader was told last.
        self._heard_us = self._as_of_us = 0
        # For the engine, between its follower and readers: whether these may have it.
        self._reading = threading.Lock()
        self._is_readable = False
        # Snapshots that readers have done with.
        self._unread: deque[int] = deque()
        self._begin()

    def _begin(self) -> None:
        with self._reading:
            self._is_readable = False
            self._unread.clear()
        self.payloads: Payloads | None = None
        self._journal: FollowedJournal | None = None
        self._streams: ShardStreams | None = None
        self._follower: Follower | None = None
        self._pieces: Pieces | None = None
        # What is done in pieces: the load, then one manifest after the other.
        self._work: Iterator[None] | None = None
        self._sequence = 0

    # What others see

    @property
    def epoch(self) -> int:
        """The highest that was read; 0: nothing was."""
        return self._streams.leadership.epoch if self._streams is not None else 0

    @property
    def sequence(self) -> int:
        """Up to which place of the stream the engine has all; 0 until it is loaded."""
        return self._sequence

    @property
    def yielded(self) -> tuple[int, str] | None:
        """What the last leader said when it gave the shard up: its epoch, and to whom."""
        return self._streams.leadership.yielded if self._streams is not None else None

    @property
    def engine(self) -> Engine | None:
        """None until it is loaded. For the thread that steps."""
        return self._follower.engine if self._follower is not None and self._sequence else None

    @property
    def used_bytes(self) -> int:
        """Of memory, as the budget counts it."""
        return 0 if self._follower is None else self._follower.engine.memory.used_bytes

    @property
    def manifest(self) -> Manifest | None:
        """The one that it has gone over to; None until it is loaded."""
        return None if self._follower is None else self._follower.manifest

    def hear(self, sequence: int, version: int, at_us: int = 0) -> bool:
        """The leader's stream is so far, and its manifest; and was no further at `at_us`, if that is known.

        True if that is more than is known here.
        """
        is_as_far = sequence >= self._heard
        # In this order: a reader between the two may not take the moment without what was durable then.
        self._heard = max(self._heard, sequence)
        if is_as_far:
            self._heard_us = max(self._heard_us, at_us)
        self._heard_version = max(self._heard_version, version)
        follower = self._follower
        return self._heard > self._sequence or (
            follower is not None and self._heard_version > follower.version
        )

    def hurry(self) -> None:
        """The leader may be gone: read to the end, without waiting to be told."""
        self._to_the_end, self._wait_until = True, 0.0

    # Readers

    def read(self, commands: Sequence[Any], now_us: int) -> tuple[list[Any], int]:
        """Replies to commands that change nothing, all of one moment, and which moment that is.

        It is the last one of which is known that nothing was durable which the replies don't show. Raises
        `NotReadable`.
        """
        with self._reading:
            follower = self._follower
            if not self._is_readable or follower is None:
                raise NotReadable
            engine = follower.engine
            self._release_unread(follower)
            heard_us = self._heard_us
            known_us = heard_us if self._sequence >= self._heard else 0
            self._as_of_us = max(self._as_of_us, known_us, engine.state.last_at_us)
            return [
                still_reads.read(engine, command, now_us) for command in commands
            ], self._as_of_us

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """A reader has done with it. Waits for nothing: it may be called wherever garbage is collected."""
        follower = self._follower
        if follower is not None and follower.engine.snapshots.get(snapshot.number) is snapshot:
            self._unread.append(snapshot.number)

    def _release_unread(self, follower: Follower) -> None:
        """What is written is copied into each snapshot that is open. With the lock of readers."""
        while self._unread:
            follower.engine.snapshots.release(self._unread.popleft())

    def _let_read(self, readable: bool) -> None:
        with self._reading:
            self._is_readable = readable
            if self._follower is not None:
                self._release_unread(self._follower)

    # Steps

    def step(self) -> float | None:
        """Does a piece; returns in how many seconds there is more to do, None: when more is heard of."""
        wait_s = self._wait_until - time.monotonic()
        if wait_s > 0:
            return wait_s
        try:
            more = self._step()
        except (Gone, NotFound, Corruption) as error:
            return self._begin_anew(error)
        except FastiError as error:
            if self._work is not None:
                # What was begun can't be gone on with.
                return self._begin_anew(error)
            # NATS doesn't answer: what there is stays.
            _log.debug("shard %d: %s", self.shard, error)
            self._wait_until = time.monotonic() + _PAUSE_S
            return _PAUSE_S
        except Exception as fault:
            # By a fault of the program; this broker's own shards have nothing to do with it.
            _log.exception("the standby of shard %d failed", self.shard)
            return self._begin_anew(fault)
        return 0.0 if more else None

    def _begin_anew(self, error: Exception) -> float:
        _log.warning("the standby of shard %d begins anew: %s", self.shard, error)
        self._begin()
        pause_s = back_off(_PAUSE_S, self._failures, _PAUSE_MAX_S)
        self._failures += 1
        self._wait_until = time.monotonic() + pause_s
        return pause_s

    def _step(self) -> bool:
        if self._streams is None:
            return self._open()
        if self._work is not None:
            return self._go_on(self._work)
        assert self._follower is not None
        reached = self._read(self._streams.leadership)
        if not self._apply(self._streams, self._follower):
            return True
        if reached and not self._sequence:
            self._show(self._streams, self._follower)
        if reached or self._sequence:
            # Also while it doesn't catch up: others go by how far it is.
            self._sequence = self._streams.leadership.sequence
            self._failures = 0
        if self._heard_version > self._follower.version and self._go_over(self._streams):
            return True
        return not reached

    def _open(self) -> bool:
        streams = self._storage.connect(_CACHE_BYTES)
        # Nothing but the pointer is read.
        streams.leadership.follow(0, 1, 1)
        record = streams.pointer.record
        stored = streams.blocks.manifest_of(record)
        if stored is None:
            # Its first leader is only about to begin.
            self._wait_until = time.monotonic() + _PAUSE_S
            return True
        self._streams, self._pieces = streams, streams.leadership.pieces
        self._follower = Follower(self._make_engine(), streams.blocks)
        self._heard = max(self._heard, record.place.sequence)
        self._work = self._follower.load(Manifest.decode(stored[1]), stored[0])
        self.loads += 1
        return True

    def _go_on(self, work: Iterator[None]) -> bool:
        until = time.monotonic() + PIECE_S
        for _ in work:
            if time.monotonic() >= until:
                return True
        self._work = None
        self._let_read(self._sequence > 0)
        return True

    def _show(self, streams: ShardStreams, follower: Follower) -> None:
        """It has caught up: from now on it may be read from."""
        assert follower.manifest is not None
        journal = FollowedJournal(streams)
        self._journal = journal
        self.payloads = Payloads(journal, streams.blocks, follower.manifest.payload_names)
        self._let_read(True)

    def _read(self, leadership: Leadership) -> bool:
        """More packs; True if all that is known of are here."""
        upto, self._to_the_end = None if self._to_the_end else self._heard, False
        try:
            reached = leadership.follow(upto, _PACKS, _CACHE_BYTES // 4)
        except BaseException:
            self._to_the_end = upto is None
            raise
        if leadership.pieces is not self._pieces:
            raise Gone(f"the packs behind {self._sequence} were trimmed")
        self._to_the_end = upto is None and not reached
        return reached

    def _apply(self, streams: ShardStreams, follower: Follower) -> bool:
        """The frames of what was read; True if that is all of them."""
        pieces, until = streams.leadership.pieces, time.monotonic() + PIECE_S
        after = follower.position
        coming = pieces.items[pieces.find(after + 1) :]
        reads = PieceReader(streams.stream, 1.0)
        group: list[StoredFrame] = []
        for frame in reads.replay(coming, after, pieces.finished):
            group.append(frame)
            if not frame.ends_group:
                continue
            # A reader sees all of a command or nothing.
            with self._reading:
                self._release_unread(follower)
                for one in group:
                    follower.apply(one)
            group = []
            if time.monotonic() >= until:
                return follower.position >= pieces.finished
        return True

    def _go_over(self, streams: ShardStreams) -> bool:
        """To the manifest in force, once all up to its place is here; False if it isn't."""
        follower = self._follower
        assert follower is not None
        record = streams.pointer.read()
        if record.version <= follower.version:
            return False
        self._heard = max(self._heard, record.place.sequence)
        if follower.position < record.position:
            return self._sequence < record.place.sequence
        stored = streams.blocks.manifest_of(record)
        assert stored is not None
        self._let_read(False)
        self._work = self._install(streams, follower, record, Manifest.decode(stored[1]))
        return True

    def _install(
        self, streams: ShardStreams, follower: Follower, record: PointerRecord, manifest: Manifest
    ) -> Iterator[None]:
        old = follower.manifest
        yield from follower.install(manifest, record.version)
        if self.payloads is not None and old is not None:
            # Readers of a snapshot still want what was just put out of force.
            names = old.payload_names | manifest.payload_names
            self.payloads.names = names
            self.payloads.forget(True, names.__contains__)
            self.payloads.forget(False, lambda frame: frame > old.position)
        if self._journal is not None:
            self._journal.keep_before(record.place)
        streams.leadership.pieces.forget(record.place)
        self.installs += 1

    # The end

    def hand_over(self) -> StreamStorage:
        """The storage to open, which goes on from here; nothing else may be done with this standby then,
        but `take_back`.
        """
        if self._streams is not None and self._follower is not None:
            if self._work is not None and self._follower.manifest is not None:
                try:
                    exhaust(self._work)
                    self._let_read(self._sequence > 0)
                except Exception as error:
                    self._begin_anew(error)
            elif self._work is not None:
                # It was only half loaded.
                self._begin()
        if self._streams is not None:
            self._work = None
            self._storage.followed = self._streams, self._follower
            self._storage.on_led = lambda: self._let_read(False)
        return self._storage

    def take_back(self) -> None:
        """It was not opened, or could not be loaded then: follows again, with what there was if that is good
        still.
        """
        self._storage.begin_anew()
        self._storage.on_led = None
        streams, follower = self._streams, self._follower
        leads = streams is not None and streams.leadership.role in (Role.LEADER, Role.FENCED)
        if leads or (follower is not None and not follower.is_whole):
            self._begin()
        else:
            self._let_read(self._sequence > 0)
