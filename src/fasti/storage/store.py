"""What a shard stores: journal, blocks and manifest, and what is done with them.

The store knows no threads of its own. The order of things is what keeps the promises:

* A frame is appended, then synced, then answered.
* A checkpoint's blocks are durable, then the journal is durable up to its position, then the
  manifest is switched, then the engine learns the new places, and only then is anything deleted.
* What a snapshot may still ask for is deleted when the snapshot is gone.
* When opening, nothing is deleted before everything has been read and found good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core.agenda import FOREVER
from fasti.core.checkpoint import BeginCheckpoint, Plan
from fasti.core.commands import RunsInstalled, SliceLoaded
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.kv.commands import KvExpire, LoadRemoved
from fasti.core.log.order import LoadKeys
from fasti.core.replies import Asked, LoadSlice
from fasti.core.replies import Frame as EngineFrame
from fasti.errors import Corruption, FastiError, NotFound
from fasti.storage.checkpoint import CheckpointWriter, Written
from fasti.storage.event_codec import encode
from fasti.storage.follower import Follower, exhaust
from fasti.storage.frames import Frame, body_bytes
from fasti.storage.log_rows import load_keys
from fasti.storage.payloads import Payloads
from fasti.storage.recovery import delete_leftovers, tail
from fasti.storage.runs import number_in
from fasti.storage.slices import load_slice
from fasti.storage.storage_engine import StorageEngine


@dataclass(slots=True)
class _Condemned:
    """What a checkpoint has put out of force: blocks, and the journal up to its position."""

    names: set[str]
    position: int
    # The last snapshot that may ask for it; None until the engine has learned the new places.
    needed_by: int | None = None


class ShardStore:
    """An open storage engine, for one shard. Whether another has it open is the engine's to tell."""

    def __init__(
        self, engine: StorageEngine, settings: ShardSettings, cut_after: int | None = None
    ) -> None:
        self.settings = settings
        self.storage = storage = engine.open(settings, cut_after)
        self.journal, self.blocks = storage.journal, storage.blocks
        self.capacity = storage.capacity
        self.version, self.manifest = storage.manifest
        self.payloads = Payloads(self.journal, self.blocks, self.manifest.payload_names)
        self.payloads.is_named = lambda name: name in self.manifest.names
        # What lies behind the manifest when it is opened, and how many frames had to be replayed then.
        self.tail_bytes = self.replayed = 0
        self._unwritten: list[int] = []
        self._condemned: list[_Condemned] = []
        # Blocks of a manifest that may be in force, or come back into force after a crash.
        self._uncertain: set[str] = set()
        # Up to here only the change feed needs the journal; how much of that was left when it was trimmed,
        # and may be.
        self._unneeded = self.feed_bytes = 0
        self.feed_bytes_max: Callable[[], int] = lambda: self.settings.feed_bytes
        # Who answers what the engine asks for.
        self._answers: dict[type[Asked], Callable[[Any], Any]] = {
            LoadSlice: lambda wanted: self.load_slice(wanted),
            LoadRemoved: lambda wanted: self._load_removed(wanted),
            LoadKeys: lambda wanted: load_keys(self.payloads, wanted),
        }

    @property
    def seed(self) -> tuple[int, int]:
        """The secret under which keys are hashed here."""
        return self.manifest.seed

    def close(self) -> None:
        """Lets go of the storage. Syncs nothing: the caller has done that."""
        self.storage.close()

    # Opening

    def load(self, make_engine: Callable[[], Engine]) -> Engine:
        """An engine that is up to date: one that has followed this journal (`OpenStorage.follower`), or a
        fresh one. `replayed` says how many frames it had to be told.
        """
        self._unneeded = self.manifest.position
        follower = self.storage.follower or Follower(make_engine(), self.blocks)
        before = follower.applied
        try:
            if follower.manifest is None:
                exhaust(follower.load(self.manifest, self.version))
            for frame in tail(self.journal, follower.position):
                follower.apply(frame)
            if follower.version != self.version:
                exhaust(follower.install(self.manifest, self.version))
        except Corruption as error:
            raise self.storage.explain(error) from error
        self._unwritten = follower.settle()
        self.replayed, self.tail_bytes = follower.applied - before, follower.tail_bytes
        delete_leftovers(self.blocks, self.manifest, self.journal.epoch)
        self.storage.settle()
        return follower.engine

    # Journal

    @property
    def tail_frames(self) -> int:
        """How many frames no checkpoint tells yet: they would have to be replayed now."""
        return self.journal.last_sequence - self.manifest.position

    def encode(self, frames: Sequence[EngineFrame]) -> list[Frame]:
        """Frames as the journal takes them."""
        return [
            Frame(
                frame.sequence,
                frame.events[-1].at_us,
                frame.begins_group,
                frame.ends_group,
                encode(frame),
            )
            for frame in frames
        ]

    @staticmethod
    def size(frames: Sequence[Frame]) -> int:
        return sum(body_bytes(frame.body) for frame in frames)

    # Checkpoints

    def begin_checkpoint(self, decide: Callable[[BeginCheckpoint], Plan]) -> Plan:
        """`decide` has the engine decide the input, in a step."""
        plan = decide(BeginCheckpoint(self.journal.first_sequence, self._unwritten))
        self._unwritten = plan.unwritten
        return plan

    def write_checkpoint(
        self,
        plan: Plan,
        pace: Callable[[int], None],
        wait_durable: Callable[[int], None],
    ) -> tuple[Written, RunsInstalled]:
        """Beside the traffic: writes the blocks and switches the manifest.

        On failure nothing has changed, and the changes are left to the next checkpoint.
        """
        if self._uncertain:
            self.version = self._stored_version()
        writer = CheckpointWriter(
            self.blocks, self.payloads, self.manifest, plan, pace, self.journal.epoch
        )
        try:
            written = writer.write()
            wait_durable(plan.snapshot.position)
        except BaseException:
            writer.withdraw()
            self.manifest.next_block = writer.next_block
            raise
        version = self._switch(writer, written)
        names = (self.manifest.names | self._uncertain) - written.manifest.names
        self._condemned.append(_Condemned(names, written.manifest.position))
        self.version, self.manifest = version, written.manifest
        self.payloads.names = self.payloads.names | self.manifest.payload_names
        self._uncertain = set()
        self._unwritten = []
        return written, written.finished(version)

    def _switch(self, writer: CheckpointWriter, written: Written) -> int:
        try:
            return self.blocks.switch_manifest(self.version, written.manifest.encode())
        except BaseException:
            # No number serves twice: neither of what stays, nor of what could not be deleted.
            self.manifest.next_block = writer.next_block
            if self._is_unchanged():
                writer.withdraw()
            else:
                # It can be read but may not be durable: the blocks of both must stay.
                self._uncertain |= written.manifest.names
            raise

    def _is_unchanged(self) -> bool:
        try:
            return self._stored_version() == self.version
        except FastiError:
            return False

    def _stored_version(self) -> int:
        stored = self.blocks.read_manifest()
        return 0 if stored is None else stored[0]

    def clean_up(
        self, snapshots: Collection[int] = (), now_us: int = 0, is_held: bool = False
    ) -> None:
        """After the engine has learned the new places: deletes what is not needed any more.

        `snapshots` are the numbers of those that are open. They keep what was in force when they
        were taken; younger ones know the new places only. `now_us` judges the feed's age. While a
        backup is under way (`is_held`) nothing is deleted.
        """
        for condemned in self._condemned:
            if condemned.needed_by is None:
                condemned.needed_by = max(snapshots, default=0)
        if is_held:
            return
        oldest = min(snapshots, default=FOREVER)
        free = [c for c in self._condemned if c.needed_by is not None and c.needed_by < oldest]
        if not free:
            return
        position = max(condemned.position for condemned in free)
        held = {name for c in self._condemned if c not in free for name in c.names}
        needed = {number_in(name) for name in self.manifest.names | held}
        self.payloads.forget(in_run=True, wanted=needed.__contains__)
        self.payloads.names = {n: name for n, name in self.payloads.names.items() if n in needed}
        self.payloads.forget(in_run=False, wanted=lambda frame: frame > position)
        for condemned in free:
            for name in sorted(condemned.names):
                with suppress(NotFound):
                    self.blocks.delete(name)
            self._condemned.remove(condemned)
        named = {f"blocks/{name}" for name in self.manifest.names | held}
        self.payloads.damages.forget(lambda file: file.startswith("blocks/") and file not in named)
        self.payloads.damages.forget(lambda file: not self.storage.holds(file))
        self._unneeded = max(self._unneeded, position)
        self.trim_feed(now_us)

    def trim_feed(self, now_us: int) -> None:
        """Lets go of journal that only the change feed needs, where it is too old or too much for it."""
        pieces = [piece for piece in self.journal.sealed() if piece.last_sequence <= self._unneeded]
        kept_bytes = sum(piece.size_bytes for piece in pieces)
        limit_bytes = self.feed_bytes_max()
        through = 0
        for piece in pieces:
            old = piece.until_us <= now_us - self.settings.feed_age_us
            if not old and kept_bytes <= limit_bytes:
                break
            kept_bytes -= piece.size_bytes
            through = piece.last_sequence
        if through:
            self.journal.trim(through)
        self.feed_bytes = kept_bytes

    def sizes(self) -> dict[str, int]:
        """Bytes on disk of the journal, of what of it only the change feed needs, and of blocks."""
        sealed = self.journal.sealed()
        feed = sum(piece.size_bytes for piece in sealed if piece.last_sequence <= self._unneeded)
        journal = sum(piece.size_bytes for piece in sealed) - feed
        return {
            "journal": journal + self.capacity.allocated_bytes,
            "feed": feed,
            "blocks": sum(block.size_bytes for block in self.manifest.blocks),
        }

    def give_up_feed(self) -> bool:
        """The disk is full: the change feed makes room for messages.

        False if it had none, or could not go: the caller is in trouble already, and waits.
        """
        before = self.journal.first_sequence
        with suppress(FastiError):
            self.journal.trim(self._unneeded)
        return self.journal.first_sequence > before

    # What the engine asks for

    def answer(self, request: Asked) -> Any:
        """The command that answers an effect of the engine's. From any thread."""
        return self._answers[type(request)](request)

    def _load_removed(self, wanted: LoadRemoved) -> KvExpire:
        """The keys of entries that have expired, without their values."""
        # One that can't be read goes too; watchers are told no name.
        keys = self.payloads.gather(wanted.locations, names=("key",), lost=True).column("key")
        keys = keys.fill_null("")
        empty = pa.array([b""] * len(keys), pa.binary())
        rows = Rows.of(empty, self.settings.limits, key=keys)
        return KvExpire(wanted.topic, wanted.partition, wanted.sequences, wanted.versions, rows)

    def load_slice(self, wanted: LoadSlice) -> SliceLoaded:
        """Entries of runs that come due. From any thread."""
        return load_slice(self.blocks, self.manifest.blocks, wanted)
