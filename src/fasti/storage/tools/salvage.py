"""Bringing an engine up to date from a journal with gaps, and telling what the gaps cost.

The blocks are whole; the journal behind them is not. Frames up to the first gap are replayed as at
every opening; behind it each event is mended first (mending.py). A group of frames of which one is
lost is void as a whole: a transaction happens whole or not at all.

No id is given twice: each frame that is lost may have given 65,536 ids in any partition, so that many
are passed over. Ids that were passed over and of which no frame tells are reported as possible.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.engine import Engine
from fasti.core.events import TopicDeleted
from fasti.core.keys import Rows
from fasti.core.log.body import log_of
from fasti.core.log.group_events import GroupMade
from fasti.core.replies import Frame as EngineFrame
from fasti.core.rows.arena import FRAME_BITS, STATE_MASK
from fasti.core.rows.location import ROWS_MAX
from fasti.core.timeline.partition import Partition
from fasti.model import SEQUENCE_BITS, State
from fasti.storage.blocks import BlockStore
from fasti.storage.event_codec import decode, encode, partition_of, read_head, topic_of
from fasti.storage.frames import StoredFrame, flattened
from fasti.storage.log_rows import LOST_HEADER
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads
from fasti.storage.recovery import recover
from fasti.storage.tools.at_rest import TOOL_MEMORY_BYTES, JournalAtRest
from fasti.storage.tools.losses import IdRange, Losses, LostRows, TopicLosses
from fasti.storage.tools.mending import Mender, Place
from fasti.storage.tools.salvage_blocks import forget_missing, without_damaged

Int64s = NDArray[np.int64]

# No frame has this sequence: it stands for empty rows, in place of lost ones.
FILLER = 0
_SKIPPED_IDS_MAX = 1 << 28
_UNKNOWN_FRAMES = 256
_LIVE = (State.SCHEDULED, State.LEASED)
# Which kind of topic an event's code belongs to; all others are a timeline's.
_KINDS = {16: "priority", 17: "priority", 18: "priority", 80: "kv", 81: "kv"}
_KINDS |= dict.fromkeys((60, 61, *range(68, 80)), "log")
_KINDS |= dict.fromkeys(range(90, 96), "cron")


class _FilledJournal:
    """A `JournalReader` that also has filler rows."""

    def __init__(self, journal: JournalAtRest) -> None:
        self.epoch, self.first_sequence = journal.epoch, journal.first_sequence
        self.last_sequence = self.finished_sequence = journal.last_sequence
        self.replay, self._body = journal.replay, journal.body

    def body(self, sequence: int) -> memoryview:
        return self._body(sequence) if sequence != FILLER else _filler_body()


@cache
def _filler_body() -> memoryview:
    headers = [[(LOST_HEADER, "true")]] * ROWS_MAX
    rows = Rows.of([b""] * ROWS_MAX, headers=headers)
    buffers = encode(EngineFrame(FILLER, [TopicDeleted(0, 0)], rows, True, True))
    return memoryview(b"".join(flattened(buffers)))


class Salvage:
    """Reads a directory whose journal has gaps into a fresh engine."""

    def __init__(
        self,
        blocks: BlockStore,
        journal: JournalAtRest,
        manifest: Manifest,
        damaged: frozenset[str] = frozenset(),
    ) -> None:
        self.engine = Engine(TOOL_MEMORY_BYTES)
        # Without the blocks that are damaged, once it was read.
        self.manifest = manifest
        self._damaged = damaged
        self._lost: dict[Place, LostRows] = defaultdict(LostRows)
        self.losses = Losses()
        self.payloads = Payloads(_FilledJournal(journal), blocks)
        # Of the blocks that are written in place of lost ones, and of the directory's next life.
        self.epoch = manifest.next_epoch(journal.epoch)
        self._blocks, self._journal = blocks, journal
        self._mender: Mender | None = None
        self._live: dict[Place, Int64s] = {}

    def read(self, version: int, cut_frames: int | None = None) -> Losses:
        """Brings the engine up to date. `cut_frames`: how many frames were cut off at the end."""
        self.manifest = without_damaged(
            self._blocks,
            self.manifest,
            self.epoch,
            set(self._damaged),
            self._lost.__getitem__,
            self.losses,
        )
        self.payloads.names = self.manifest.payload_names
        recover(self.engine, self._blocks, self.manifest, version)
        expected = self.manifest.position + 1
        if self._damaged:
            forget_missing(self.engine)
            self._begin_mending(expected)
        for frame in self._journal.frames(self.manifest.position):
            if frame.sequence != expected:
                self._note_gap(expected, frame.sequence - 1)
            self._apply(frame)
            expected = frame.sequence + 1
        last = max(self._journal.last_sequence, self.manifest.position)
        if expected <= last:
            self._note_gap(expected, last)
        if cut_frames is None and self._journal.last_sequence < self.manifest.position:
            # The blocks tell of more than the journal has: its end is gone, and it is not known how much.
            cut_frames = _UNKNOWN_FRAMES
        if cut_frames is not None:
            self._note_gap(last + 1, None)
        self.engine.state.next_frame = last + 1
        self._finish(cut_frames or 0)
        return self.losses

    def _apply(self, frame: StoredFrame) -> None:
        events, rows = decode(frame.body, self.manifest.seed)
        if self._mender is None:
            self.engine.replay(frame.sequence, events)
            return
        self.engine.state.next_frame = frame.sequence
        for event in events:
            self._mender.apply(event, frame.sequence, rows)
        self.engine.state.next_frame = frame.sequence + 1
        self.engine.tidy()

    def _note_gap(self, first: int, last: int | None) -> None:
        self.losses.frames.append((first, last))
        self._begin_mending(first)

    def _begin_mending(self, first: int) -> None:
        if self._mender is None:
            place = (self.payloads, self.manifest.seed, FILLER, self.losses, self._lost)
            self._mender = Mender(self.engine, *place)
            self._mender.unknown = self._find_unknown(first)
            self._live = {
                (topic.number, partition.number): _live_rows(partition)
                for topic in self.engine.state.topics.values()
                for partition in topic.partitions
            }

    def _find_unknown(self, after: int) -> dict[int, tuple[str, int]]:
        """Kind and partitions of topics that later frames speak of and no known frame creates."""
        known = set(self.engine.state.topics)
        unknown: dict[int, tuple[str, int]] = {}
        for frame in self._journal.frames(max(after, self.manifest.position)):
            for code, values, packed in read_head(frame.body)["events"]:
                number = topic_of(code, values)
                if code == 1:
                    known.add(number)
                if number is None or number in known:
                    continue
                kind, partitions = unknown.get(number, ("timeline", 1))
                partition = partition_of(code, values)
                partitions = max(partitions, 1 if partition is None else partition + 1)
                if code == GroupMade.code:
                    # It has an offset for each partition.
                    partitions = max(partitions, packed[0][1])
                unknown[number] = (_KINDS.get(code, kind), partitions)
        return {
            number: (kind, 1 if kind == "cron" else partitions)
            for number, (kind, partitions) in unknown.items()
        }

    # What it cost

    def _finish(self, cut_frames: int) -> None:
        if self._mender is None:
            return
        frames = cut_frames + sum(
            last - first + 1 for first, last in self.losses.frames if last is not None
        )
        skipped = min(max(frames, 1) * ROWS_MAX, _SKIPPED_IDS_MAX) if self.losses.frames else 0
        for topic in sorted(self.engine.state.topics.values(), key=lambda topic: topic.name):
            losses = TopicLosses(topic.name, topic.number, topic.settings.kind)
            if topic.settings.kind == "log":
                for number in range(len(log_of(topic).partitions)):
                    self._count_lost(losses, number, 0)
            for number in range(len(topic.partitions)):
                # Also of those that have nothing any more: ids may be lost of which nothing tells.
                self._count_rows(losses, topic.partitions[number], skipped)
            losses.ended = self._mender.ended.get(topic.number, 0)
            if losses.touched:
                self.losses.topics.append(losses)

    def _count_lost(self, losses: TopicLosses, partition: int, high: int) -> None:
        """Ids of a log are offsets, all others have the partition's number in their high bits."""
        lost = self._lost.get((losses.number, partition))
        if lost is not None:
            losses.lost += len(lost.rows())
            losses.ids += [
                IdRange(partition, high | first, high | last) for first, last in lost.ranges()
            ]

    def _count_rows(self, losses: TopicLosses, partition: Partition, skipped: int) -> None:
        high = partition.number << SEQUENCE_BITS
        self._count_lost(losses, partition.number, high)
        first = partition.ledger.next_sequence
        if not skipped:
            return
        losses.possible.append(IdRange(partition.number, high | first, high | first + skipped - 1))
        partition.ledger.next_sequence = first + skipped
        before = self._live.get((losses.number, partition.number))
        if before is not None:
            losses.uncertain += int(np.isin(before, _live_rows(partition)).sum())


def _live_rows(partition: Partition) -> Int64s:
    """Sequences of what is scheduled or leased."""
    parts: list[Any] = [np.zeros(0, dtype=np.int64)]
    arena, view = partition.arena, partition.ledger.view()
    for page, frame in enumerate(view.frames.tolist(), start=view.base_page):
        if frame > 0:
            rows = np.arange(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
            live = np.isin(arena.flags[rows] & STATE_MASK, _LIVE)
            parts.append((page << FRAME_BITS) + np.flatnonzero(live))
    for frame in view.packed_frames:
        rows = np.arange(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
        live = np.isin(arena.flags[rows] & STATE_MASK, _LIVE)
        parts.append(arena.packed_id[rows][live])
    return np.concatenate(parts)
