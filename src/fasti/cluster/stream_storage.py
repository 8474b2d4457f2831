"""A `StorageEngine` on NATS JetStream: journal, blocks and pointer of one shard, kept by several servers.

`open` is a take-over: the journal is read to its end, `LeaderStarted` appended and the pointer claimed,
so that a broker which had the shard before is fenced with its next append. What the stream has counts,
so ``cut_after`` means nothing here.

An opening reads all there is, or, given a standby (`standby.py`), what came since that one looked last.

Once this engine was fenced it does not open again: its shard would take back what another broker has just
taken, and both would go on so. Whoever decides that this broker shall lead again makes a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING

from fasti.cluster.damage import DamageBook
from fasti.cluster.leadership import Leadership
from fasti.cluster.local_caches import LocalCaches
from fasti.cluster.names import ShardNames, check_broker
from fasti.cluster.nats import NatsConnection
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import DEFAULT_TIMEOUTS, Timeouts, insist
from fasti.cluster.pointer import Place, Pointer
from fasti.cluster.pointer_owner import GRACE_S
from fasti.cluster.rescue import Rescue
from fasti.cluster.server_room import UNBOUNDED, ServerRoom
from fasti.cluster.stream_blocks import StreamBlocks
from fasti.cluster.stream_journal import DEFAULT_PACK_BYTES, JournalLimits, StreamJournal
from fasti.config import ShardSettings
from fasti.errors import Corruption, FastiError, Fenced, StorageFull
from fasti.storage.damages import ScrubFinding
from fasti.storage.follower import Follower
from fasti.storage.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a cluster keeps its shards. The same for all brokers of a cluster, but for the last five."""

    cluster: str
    # In how many servers each stream is kept: 3, or 1 without replication.
    replicas: int = 3
    journal_bytes: int = 4 << 30
    # Of that, what only appends get that free space.
    reserve_bytes: int = 256 << 20
    # Below 0: no bound but the servers'.
    blocks_bytes: int = 64 << 30
    pack_bytes: int = DEFAULT_PACK_BYTES
    # How long what was put out of force stays for those who still read it.
    grace_s: float = GRACE_S
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    # Where blocks and packs are cached, and how many bytes of each shard's; None: nowhere.
    cache_directory: Path | None = None
    cache_bytes: int = 1 << 30
    packs_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class ShardStreams:
    """A shard's streams as one broker has them. The leadership may be a standby's still."""

    stream: PackStream
    pointer: Pointer
    leadership: Leadership
    blocks: StreamBlocks


class StreamStorage:
    """One shard's storage, for one broker. The connection is shared and stays the caller's."""

    def __init__(
        self,
        connection: NatsConnection,
        settings: StreamSettings,
        shard: int,
        broker: str,
        address: str = "",
        *,
        caches: LocalCaches | None = None,
        book: DamageBook | None = None,
        server_room: ServerRoom | None = None,
    ) -> None:
        """`caches` and `book` are the process's, where it has some; else it makes its own. Without `server_room`
        the servers take what they take.
        """
        self._connection, self._settings = connection, settings
        self._server_room = server_room
        self._names = ShardNames.of(settings.cluster, shard)
        self._broker, self._address = check_broker(broker), address
        if caches is None and settings.cache_directory is not None:
            caches = LocalCaches(
                settings.cache_directory,
                settings.cluster,
                settings.cache_bytes,
                settings.packs_bytes,
            )
        self._caches = caches
        self.rescue = Rescue(connection, self._names, book or DamageBook(), caches)
        self._lost: Fenced | None = None
        # Of the last opening; 0 before the first.
        self._epoch = 0
        # What the next opening goes on with: the streams as they were followed, and the engine.
        self.followed: tuple[ShardStreams, Follower | None] | None = None
        # Called when that opening leads, before it does anything with the engine.
        self.on_led: Callable[[], None] | None = None

    def ensure_streams(self) -> None:
        """Makes what is missing; `InvalidArgument` if a stream has other settings."""
        settings, names = self._settings, self._names
        configs = (
            PackStream.config(names, settings.replicas, settings.journal_bytes),
            StreamBlocks.stream_config(names, settings.replicas, settings.blocks_bytes),
            Pointer.stream_config(names, settings.replicas),
        )
        for config in configs:
            ensure = partial(self._connection.ensure_stream, config)
            insist(f"the stream {config['name']}", settings.timeouts.open_s, ensure)

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenStream:
        """Takes the shard over. `Fenced` if another broker was first, or has taken it from this one."""
        if self._lost is not None:
            raise self._lost
        followed, self.followed = self.followed, None
        streams, follower = followed or (self.connect(), None)
        if self._epoch:
            self._check_leads_still(streams.pointer)
        own = self._settings
        journal = StreamJournal(
            streams.stream,
            streams.pointer,
            self._broker,
            JournalLimits(own.journal_bytes, own.reserve_bytes, own.pack_bytes),
            address=self._address,
            timeouts=own.timeouts,
            leadership=streams.leadership,
        )
        if self.on_led is not None:
            self.on_led()
            self.on_led = None

        def locate(data: bytes) -> tuple[int, Place]:
            position = int(json.loads(data)["position"])
            return position, journal.place_of(position)

        streams.blocks.locate = locate
        if follower is not None and follower.position < streams.leadership.first_position:
            # What it lacks was trimmed while it slept.
            follower = None
        if follower is not None and follower.version == streams.pointer.record.version:
            assert follower.manifest is not None
            manifest = follower.version, follower.manifest
        else:
            manifest = _read_or_begin(journal, streams.blocks)
        self._epoch = journal.epoch
        streams.blocks.measure()
        low_bytes = min(settings.segment_bytes, own.journal_bytes // 8)
        opened = OpenStream(journal, streams.blocks, manifest, low_bytes, self._close)
        if self._server_room is not None:
            opened.server_room_bytes = partial(
                self._server_room.for_messages, self._names.journal_stream
            )
        opened.follower = follower
        return opened

    def connect(self, cache_bytes: int | None = None) -> ShardStreams:
        """The shard's streams, made if they are missing. ``cache_bytes`` bound the packs in memory."""
        self.ensure_streams()
        own, names = self._settings, self._names
        cache = None if self._caches is None else self._caches.blocks(names.shard)
        kept = None if self._caches is None else self._caches.packs(names.shard)
        pointer = Pointer(self._connection, names, own.timeouts, own.grace_s)
        pointer.is_held = self.rescue.is_held
        blocks = StreamBlocks(
            self._connection, names, pointer, cache,
            timeouts=own.timeouts, grace_s=own.grace_s, rescue=self.rescue,
            bytes_max=own.blocks_bytes, server_room=self._server_room,
        )  # fmt: skip
        bound = {} if cache_bytes is None else {"cache_bytes": cache_bytes}
        stream = PackStream(
            self._connection, names, **bound,
            kept=kept, rescue=self.rescue, server_room=self._server_room,
        )  # fmt: skip
        leadership = Leadership(stream, pointer, self._broker, self._address, own.timeouts)
        return ShardStreams(stream, pointer, leadership, blocks)

    def _check_leads_still(self, pointer: Pointer) -> None:
        """It is opened again after a failure, in which another broker may have taken the shard over: a living
        leader is not deposed.
        """
        name = f"the pointer of shard {self._names.shard}"
        record = insist(name, self._settings.timeouts.open_s, pointer.read)
        if record.epoch > self._epoch:
            self._lost = Fenced(
                f"another broker leads shard {self._names.shard} by now: {record.broker}",
                details={"epoch": record.epoch},
            )
            raise self._lost

    def begin_anew(self) -> None:
        """An opening led to nothing, and this broker follows again: the next one is a new decision."""
        self.followed, self._epoch, self._lost = None, 0, None

    def _close(self, journal: StreamJournal) -> None:
        self._lost = self._lost or journal.fenced


def _read_or_begin(journal: StreamJournal, blocks: StreamBlocks) -> tuple[int, Manifest]:
    """The manifest in force; the first opening writes one, of the journal's incarnation."""
    stored = Manifest.read(blocks)
    if stored is None:
        if journal.last_sequence:
            raise Corruption("there is a journal but no manifest", file="pointer", offset=0)
        manifest = Manifest(journal.incarnation, (randbits(64), randbits(64)))
        return blocks.switch_manifest(0, manifest.encode()), manifest
    if stored[1].incarnation != journal.incarnation:
        raise Corruption("the manifest belongs to another journal", file="pointer", offset=0)
    return stored


class OpenStream:
    """An `OpenStorage`; also its `Capacity`."""

    copy_warning: str | None = None
    follower: Follower | None = None
    # Who shall lead next, if this broker hands the shard over: said in the stream when it is closed.
    heir: str | None = None
    allocated_bytes = 0

    def __init__(
        self,
        journal: StreamJournal,
        blocks: StreamBlocks,
        manifest: tuple[int, Manifest],
        low_bytes: int,
        closed: Callable[[StreamJournal], None],
    ) -> None:
        self._low_bytes = low_bytes
        self.journal, self.blocks, self.manifest = journal, blocks, manifest
        self._closed = closed
        # What the servers have, for messages.
        self.server_room_bytes: Callable[[], int] = lambda: UNBOUNDED

    @property
    def capacity(self) -> OpenStream:
        return self

    def room_bytes(self) -> int:
        """The least of what the journal's stream, that of the blocks and the servers have."""
        room_bytes = min(
            self.journal.room_bytes(), self.blocks.room_bytes(), self.server_room_bytes()
        )
        return max(0, room_bytes)

    def free_bytes(self) -> int:
        """All that a stream may have is its room."""
        return 0

    def prepare_spare(self) -> bool:
        """There is nothing to prepare; `StorageFull` when little is left, so that the feed makes room."""
        rooms = {
            "the journal's stream takes": self.journal.room_bytes(),
            "the stream of the blocks takes": self.blocks.room_bytes(),
            "the NATS servers take": self.server_room_bytes(),
        }
        what = min(rooms, key=rooms.__getitem__)
        if rooms[what] < self._low_bytes:
            raise StorageFull(f"{what} {max(0, rooms[what])} bytes more")
        return False

    def explain(self, error: Corruption) -> Corruption:
        return error

    def settle(self) -> None:
        """Everything was read: what older leaders left half stored can go, when there is time for it."""
        self.blocks.sweep_below = self.journal.epoch

    def close(self) -> None:
        if self.heir is not None:
            # Without it the heir waits until it hears of it, or longer: no more than that.
            with suppress(FastiError):
                self.journal.give_up(self.heir)
        self.journal.close()
        self.blocks.appends.close()
        self._closed(self.journal)

    def holds(self, file: str) -> bool:
        return True

    def scrub(self, manifest: Manifest, pace: Callable[[int], None]) -> Iterator[ScrubFinding]:
        """Reads every block from the stream, not from the cache, which keeps what may be lost there."""
        for name in sorted(manifest.names):
            try:
                pace(self.blocks.read_stored(name))
            except Corruption as error:
                yield ScrubFinding(error.file, error.offset, error.message)

    def scrub_bytes(self, manifest: Manifest) -> int:
        blocks = sum(block.size_bytes for block in manifest.blocks)
        return blocks + sum(block.size_bytes for block in manifest.logs)

    def read_clock_record(self) -> bytes | None:
        return None

    def write_clock_record(self, record: bytes) -> None:
        """The next opening may be on another machine, whose clocks this one's tell nothing about."""


if TYPE_CHECKING:
    from fasti.storage.storage_engine import OpenStorage, StorageEngine

    _conforms: type[StorageEngine] = StreamStorage
    _opens: type[OpenStorage] = OpenStream
