"""An engine that follows a shard's journal while another process leads: what a warm standby has.

It is loaded as a shard is when it opens: from the manifest in force, then frame by frame. When the leader's
checkpoint has put another manifest in force, the engine is told where things lie now (`core/followed.py`):
of that only the new blocks' rows are read, whatever the shard holds. So what the leader trims and deletes
after its grace is nothing that this engine still has a place in.

A shard that is opened on it (`ShardStore.load`) goes on where it is: `settle` makes the engine one that may
lead, and ends the following.

Loading and installing are done in pieces, each of some milliseconds; frames are one at a time. Whoever
drives it decides what comes in between. One thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.engine import Engine
from fasti.core.followed import (
    Bools,
    Int64s,
    epoch_bytes,
    finish_install,
    install_rows,
    live_rows,
    touch_rows,
)
from fasti.core.log.kind import LogKind
from fasti.core.rows.location import is_in_run, number_of
from fasti.errors import Corruption
from fasti.storage.blocks import BlockStore
from fasti.storage.frames import StoredFrame
from fasti.storage.log_blocks import installs_of
from fasti.storage.manifest import Manifest
from fasti.storage.recovery import read_rows, recover_in_pieces, replay_frame
from fasti.storage.runs import Block, rows_by_partition

# Sizes of the tail are kept in steps of so many bytes.
_STEP_BYTES = 1 << 20


class _Epoch(NamedTuple):
    """An epoch of the engine's, and the last frame that was applied when it began."""

    number: int
    after: int


class Follower:
    """An engine at a position of the journal, with the manifest that it knows the places of."""

    def __init__(self, engine: Engine, blocks: BlockStore) -> None:
        """The engine is fresh, and is nobody else's until `settle`."""
        self.engine, self._blocks = engine, blocks
        self.manifest: Manifest | None = None
        self.version = 0
        # Once a shard has it, it follows no more.
        self.settled = False
        # How many frames were applied since the load began.
        self.applied = 0
        self._epochs: list[_Epoch] = []
        # By topic and partition: sequences of rows that only memory has right.
        self._strays: dict[tuple[int, int], Int64s] = {}
        # What was applied: the last frame, and the bytes up to it, of about every MiB.
        self._sizes: deque[tuple[int, int]] = deque()
        self._applied_bytes = 0

    @property
    def position(self) -> int:
        """The last frame that is applied."""
        return self.engine.state.next_frame - 1

    @property
    def tail_bytes(self) -> int:
        """About how much was applied behind the manifest's position."""
        return self._applied_bytes - (self._sizes[0][1] if self._sizes else 0)

    def load(self, manifest: Manifest, version: int) -> Iterator[None]:
        """Brings the fresh engine to the manifest's position, in pieces. Raises `Corruption`."""
        yield from recover_in_pieces(self.engine, self._blocks, manifest, version)
        # Without a checkpoint there is no state to restore, not even where it begins.
        self.engine.state.next_frame = manifest.position + 1
        self.manifest, self.version = manifest, version
        self._epochs = [_Epoch(self.engine.memory.epoch, manifest.position)]
        self._sizes.append((manifest.position, 0))

    def apply(self, frame: StoredFrame) -> None:
        """The next frame. Raises `Corruption` if it can't be that."""
        assert self.manifest is not None, "it was loaded"
        if frame.sequence != self.position + 1:
            raise Corruption(
                f"frame {frame.sequence} doesn't follow {self.position}",
                file="journal",
                offset=frame.sequence,
            )
        replay_frame(self.engine, frame, self.manifest.seed)
        self.applied += 1
        self._applied_bytes += len(frame.body)
        if self._applied_bytes - self._sizes[-1][1] >= _STEP_BYTES:
            self._sizes.append((frame.sequence, self._applied_bytes))

    # Another manifest

    def install(self, manifest: Manifest, version: int) -> Iterator[None]:
        """Goes over to a newer manifest, up to whose position all is applied, in pieces.

        What was begun must be ended before anything else is applied. Raises `Corruption` if the blocks
        contradict what the engine has: then it is of no use any more.
        """
        old = self.manifest
        assert old is not None
        if self.position < manifest.position:
            raise ValueError(f"frame {self.position} is before the manifest's {manifest.position}")
        doubtful = self._doubtful(manifest.position)
        known = {block.number for block in old.blocks}
        new = [block for block in manifest.blocks if block.number not in known]
        marks = self.engine.memory.marks
        for block in new:
            if not block.delta:
                marks.add_block(block.number, block.rows)
        # The newest first: where manifests were missed, a message may have rows in several of these, and only
        # the last one is its place.
        for block in sorted(new, key=lambda block: (block.checkpoint, block.number), reverse=True):
            self._install_block(block, manifest, epoch_bytes(doubtful))
            yield
        self._install_logs(old, manifest)
        runs = frozenset(block.number for block in manifest.blocks if not block.delta)
        checkpoint = max(manifest.checkpoint, self.engine.memory.epoch)
        yield from finish_install(self.engine, version, runs, checkpoint, min(doubtful) - 1)
        self._epochs = [epoch for epoch in self._epochs if epoch.number in doubtful]
        self._epochs.append(_Epoch(self.engine.memory.epoch, self.position))
        self._forget_strays()
        while len(self._sizes) > 1 and self._sizes[1][0] <= manifest.position:
            self._sizes.popleft()
        self.manifest, self.version = manifest, version

    def _doubtful(self, position: int) -> list[int]:
        """Epochs in which something may have changed behind a position; the last one always is."""
        ends = [*(epoch.after for epoch in self._epochs[1:]), position + 1]
        pairs = zip(self._epochs, ends, strict=True)
        return [epoch.number for epoch, end in pairs if end > position]

    def _install_block(self, block: Block, manifest: Manifest, doubtful: NDArray[np.uint8]) -> None:
        columns = read_rows(self._blocks, block)
        numbers = np.array(sorted(b.number for b in manifest.blocks if not b.delta), dtype=np.int64)

        def is_over(locations: Int64s) -> Bools:
            found = number_of(locations)
            return np.where(
                is_in_run(locations), ~np.isin(found, numbers), found <= manifest.position
            )

        for place, rows in rows_by_partition(columns, np.ones(block.rows, dtype=np.bool_)).items():
            part = {name: values[rows] for name, values in columns.items()}
            try:
                strays = install_rows(self.engine, place, part, is_over, doubtful, block.delta)
            except AssertionError as error:
                file = f"blocks/{block.rows_name}"
                text = f"{file} contradicts the journal: {error}"
                raise Corruption(text, file=file, offset=0) from error
            if len(strays):
                before = self._strays.get(place, strays)
                self._strays[place] = np.union1d(before, strays)

    def _install_logs(self, old: Manifest, manifest: Manifest) -> None:
        logs = self.engine.kind("log")
        assert isinstance(logs, LogKind)
        for command in installs_of(old.logs, manifest.logs):
            logs.installed(None, command)

    def _forget_strays(self) -> None:
        """Those that are finished."""
        living = {place: live_rows(self.engine, place, its) for place, its in self._strays.items()}
        self._strays = {place: its for place, its in living.items() if len(its)}

    # The end

    def settle(self) -> list[int]:
        """The engine is a shard's from now on. Epochs whose changes its next checkpoint has to write."""
        self.settled = True
        for place, strays in self._strays.items():
            touch_rows(self.engine, place, strays)
        return [epoch.number for epoch in self._epochs[:-1]]


def exhaust(pieces: Iterator[None]) -> None:
    """All pieces at once, for a caller who has nothing else to do."""
    for _ in pieces:
        pass
