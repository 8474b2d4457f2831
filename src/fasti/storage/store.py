"""A shard's data directory: lock, journal, blocks and manifest, and what is done with them.

The store knows no threads of its own. The order of things is what keeps the promises:

* A frame is appended, then synced, then answered.
* A checkpoint's blocks are durable, then the journal is durable up to its position, then the
  manifest is switched, then the engine learns the new places, and only then is anything deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from fasti.config import ShardSettings
from fasti.core.commands import RowsInstalled, RunsInstalled, SliceLoaded
from fasti.core.engine import Engine
from fasti.core.replies import Frame as EngineFrame
from fasti.core.replies import LoadSlice
from fasti.errors import Corruption
from fasti.storage import checkpoint as checkpoints
from fasti.storage.blocks import BlockStore, FileBlocks
from fasti.storage.checkpoint import CheckpointWriter, Plan, Written
from fasti.storage.event_codec import encode
from fasti.storage.file_journal import FileJournal
from fasti.storage.files import Files
from fasti.storage.frames import Frame, body_bytes
from fasti.storage.journal import Journal
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads
from fasti.storage.recovery import delete_leftovers, recover, replay
from fasti.storage.slices import load_slice


class ShardStore:
    """An open data directory. Only one process can have it open: `locked` says who else does."""

    def __init__(self, files: Files, settings: ShardSettings, cut_after: int | None = None) -> None:
        self.settings = settings
        self._files = files
        self._lock = files.lock()
        try:
            self.blocks: BlockStore = FileBlocks(files)
            self.version, self.manifest = self._open_manifest()
            self.journal: Journal = FileJournal(
                files,
                segment_bytes=settings.segment_bytes,
                incarnation=self.manifest.incarnation,
                cut_after=cut_after,
            )
        except BaseException:
            self._lock.release()
            raise
        self.payloads = Payloads(self.journal, self.blocks)
        self._unwritten: list[int] = []
        self._condemned: set[str] = set()

    def _open_manifest(self) -> tuple[int, Manifest]:
        found = self.blocks.read_manifest()
        if found is not None:
            return found[0], Manifest.decode(found[1])
        if self._files.list("journal/"):
            raise Corruption("there is a journal but no manifest", file="blocks/MANIFEST", offset=0)
        seed = (secrets.randbits(64), secrets.randbits(64))
        manifest = Manifest(secrets.randbits(63), seed)
        return self.blocks.switch_manifest(0, manifest.encode()), manifest

    @property
    def seed(self) -> tuple[int, int]:
        """The secret under which keys are hashed here."""
        return self.manifest.seed

    def close(self) -> None:
        """Lets go of the directory. Syncs nothing: whoever closes has done that."""
        self.journal.close()
        self._lock.release()

    # Opening

    def load(self, engine: Engine) -> int:
        """Brings a fresh engine up to date; returns how many frames were replayed."""
        delete_leftovers(self.blocks, self.manifest)
        recover(engine, self.blocks, self.manifest, self.version)
        return replay(engine, self.journal, self.manifest)

    # Journal

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
        """Bytes of frames, about."""
        return sum(body_bytes(frame.body) for frame in frames)

    # Checkpoints

    def begin_checkpoint(self, engine: Engine, now_us: int) -> Plan:
        """In the sequencer, between two steps."""
        plan = checkpoints.begin(engine, self._unwritten, now_us)
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
        writer = CheckpointWriter(self.blocks, self.payloads, self.manifest, plan, pace)
        written = writer.write()
        try:
            wait_durable(plan.snapshot.position)
            version = self.blocks.switch_manifest(self.version, written.manifest.encode())
        except BaseException:
            writer.withdraw()
            raise
        before = self.manifest.names
        self.version, self.manifest = version, written.manifest
        self._condemned |= before - written.manifest.names
        self._unwritten = []
        return written, written.finished(version)

    def install(self, engine: Engine, written: Written) -> list[RowsInstalled]:
        """In the sequencer: makes the new blocks known; the inputs to step follow."""
        for block in written.new_blocks:
            if not block.delta:
                engine.memory.marks.add_block(block.number, block.rows)
        return written.installs

    def clean_up(self) -> None:
        """After the engine has learned the new places, and no snapshot needs the old ones."""
        kept = {block.number for block in self.manifest.blocks}
        position = self.manifest.position
        self.payloads.forget(in_run=True, wanted=kept.__contains__)
        self.payloads.forget(in_run=False, wanted=lambda frame: frame > position)
        for name in sorted(self._condemned):
            self.blocks.delete(name)
        self._condemned.clear()
        self.journal.trim(position)

    # Slices

    def load_slice(self, wanted: LoadSlice) -> SliceLoaded:
        """Entries of runs that come due. From any thread."""
        return load_slice(self.blocks, self.manifest.blocks, wanted)
