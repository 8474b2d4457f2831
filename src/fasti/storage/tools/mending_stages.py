"""Stages and sinks behind a gap: see mending.py.

Rows of a stage land, or are dropped, in the order in which they came. So when a later event names
rows of a stage, those before them have had their turn in the gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.lifecycle import Verb
from fasti.core.sinks import events as sinks
from fasti.core.sinks.book import Sink
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.model import SEQUENCE_BITS, State

if TYPE_CHECKING:
    from fasti.storage.tools.mending import Mend, Mender

Int64s = NDArray[np.int64]


class StageMender:
    """The part of a `Mender` for stages."""

    def __init__(self, mender: Mender) -> None:
        self._mender, self._state = mender, mender.state

    def mends(self) -> dict[type[ev.Event], Mend]:
        return {
            ev.StageOpened: self._opened,
            sinks.SinkStageOpened: self._opened,
            ev.Published: self._published,
            sinks.SinkPublished: self._sink_published,
            ev.StageDropped: self._if_known,
            sinks.StageLanded: self._rows_left,
            sinks.StageRowsDropped: self._rows_left,
            sinks.SinkCarried: self._carried,
        }

    def open_if_missing(self, event: ev.Produced) -> None:
        """A stage that was opened in the gap gets more rows."""
        if event.stage not in self._state.stages:
            opened = ev.StageOpened(event.at_us, event.stage, event.topic)
            self._mender.make_so(opened)

    def _opened(self, event: Any, frame: int) -> None:
        stage = self._state.stages.get(event.stage)
        if stage is not None:
            # It ended in the gap, and its name serves again.
            self._drop(event.stage, stage, event.at_us)
            self._state.stages.pop(event.stage, None)
        self._mender.make_so(event, frame)

    def _if_known(self, event: Any, frame: int) -> None:
        if event.stage in self._state.stages:
            self._mender.make_so(event, frame)

    # Publishing

    def _published(self, event: ev.Published, frame: int) -> None:
        stage = self._state.stages.get(event.stage)
        if stage is not None:
            self._free_keys(stage, event.at_us, frame, event.skipped)
            self._mender.make_so(event, frame)

    def _sink_published(self, event: sinks.SinkPublished, frame: int) -> None:
        known = [name for name in event.stages if name in self._state.stages]
        if len(known) < len(event.stages):
            self._mender.losses.note(
                f"sink {event.sink!r}: stages of batch {event.batch} were filled in the gap; "
                "their rows are lost"
            )
        for name in known:
            stage = self._state.stages[name]
            if not stage.sink:
                stage.sink, stage.batch = event.sink, event.batch
                stage.operation, stage.target = event.operation, stage.topic
            if not event.skip:
                self._free_keys(stage, event.at_us, frame)
        self._give_up_earlier(event)
        place = (event.sink, event.batch, event.operation, event.skip, known)
        self._mender.make_so(sinks.SinkPublished(event.at_us, *place), frame)

    def _give_up_earlier(self, event: sinks.SinkPublished) -> None:
        """Batches between the last one known and this one were published in the gap. Which of their
        stages, and which rows have landed, is not known.
        """
        last = self._state.sinks.all.get(event.sink)
        for name, stage in self._state.sinks.stages_of(event.sink).items():
            is_between = (-1 if last is None else last.batch) < stage.batch < event.batch
            if stage.published or not is_between:
                continue
            for batch in stage.batches:
                lost = self._mender.lost[stage.topic, batch.partition]
                lost.add(int(batch.sequences[0]), int(batch.sequences[-1]))
            self._drop(name, stage, event.at_us)

    def _free_keys(
        self, stage: Stage, at_us: int, frame: int, skipped: Int64s | None = None
    ) -> None:
        """The stage's rows have their keys now, but for those that were skipped."""
        for batch in stage.batches:
            if batch.hashes is not None and stage.topic in self._state.topics:
                partition = self._state.topics[stage.topic].partitions[batch.partition]
                hashes = batch.hashes
                if skipped is not None:
                    hashes = hashes[~np.isin(_ids(batch), skipped)]
                self._mender.free_keys(partition, hashes, at_us, frame)

    def _taken(self, partition: Partition, batch: StagedRows) -> NDArray[np.bool_]:
        """Which rows have a key that a live message has."""
        if batch.hashes is None:
            return np.zeros(len(batch.sequences), dtype=np.bool_)
        holders = partition.find_keys(batch.hashes)
        own = np.isin(holders, batch.sequences)
        has_key = (batch.hashes[:, 0] != 0) & (holders > 0) & ~own
        return has_key & partition.is_live(holders)

    def _publish_if_not(self, name: str, stage: Stage, at_us: int, frame: int) -> None:
        """Its rows land: it was published in the gap.

        Which of its rows were skipped then is not known: those are taken whose key a live message has.
        """
        if stage.published:
            return
        if stage.sink:
            place = (stage.sink, stage.batch, stage.operation, 1, [name])
            self._mender.make_so(sinks.SinkPublished(at_us, *place), frame)
            return
        partitions = self._state.topics[stage.topic].partitions
        skipped = [np.zeros(0, dtype=np.int64)]
        for batch in stage.batches:
            skipped.append(_ids(batch)[self._taken(partitions[batch.partition], batch)])
        self._mender.make_so(ev.Published(at_us, name, np.concatenate(skipped)), frame)

    # Rows that leave a stage

    def _rows_left(self, event: Any, frame: int) -> None:
        partition = self._state.partition(event)
        skipped: Int64s = getattr(event, "skipped", np.zeros(0, dtype=np.int64))
        rows = np.sort(np.concatenate([event.sequence, skipped]))
        self._mender.skip_to(partition, int(rows.max()) + 1)
        lands = isinstance(event, sinks.StageLanded)
        lost = self._mender.lost[partition.topic, partition.number]
        lost.end(skipped if lands else rows)
        stage = self._state.stages.get(event.stage)
        if stage is None:
            return
        if lands:
            self._publish_if_not(event.stage, stage, event.at_us, frame)
        self._pass(stage, event, rows, lands)
        if self._is_next(stage, event.partition, rows):
            if stage.sink and lands:
                self._know_sink(stage, event.at_us)
            hashes = stage.batches[0].hashes
            if lands and stage.skip and hashes is not None:
                landed = hashes[event.sequence - stage.batches[0].sequences[0]]
                self._mender.free_keys(partition, landed, event.at_us, frame)
            self._mender.make_so(event, frame)

    def _pass(self, stage: Stage, event: Any, rows: Int64s, lands: bool) -> None:
        """What stands before these rows had its turn in the gap."""
        before = []
        while stage.batches:
            batch = stage.batches[0]
            mine = batch.partition == event.partition
            at = int(np.searchsorted(batch.sequences, rows[0])) if mine else len(batch.sequences)
            if not mine and not self._is_later(stage, event.partition, rows):
                break
            if at == 0:
                break
            before += stage.take(at)
        for part in before:
            partition = self._state.topics[stage.topic].partitions[part.partition]
            if lands:
                self._enter(partition, part, stage, event.at_us)
            else:
                slots = partition.ledger.slots(part.sequences)
                partition.finish(part.sequences, slots, Verb.DROP, event.at_us)

    def _is_later(self, stage: Stage, partition: int, rows: Int64s) -> bool:
        return any(b.partition == partition and b.has(rows).any() for b in stage.batches)

    def _is_next(self, stage: Stage, partition: int, rows: Int64s) -> bool:
        if not stage.batches or stage.batches[0].partition != partition:
            return False
        return np.array_equal(stage.batches[0].sequences[: len(rows)], rows)

    def _know_sink(self, stage: Stage, at_us: int) -> None:
        if stage.sink not in self._state.sinks.all:
            place = (stage.sink, stage.batch, stage.operation, at_us)
            self._state.sinks.all[stage.sink] = Sink(*place)

    def land(self, partition: Partition, sequences: Int64s, at_us: int, frame: int) -> None:
        """A later event finds staged rows live: they landed in the gap."""
        for name, stage in list(self._state.stages.items()):
            if stage.topic != partition.topic:
                continue
            remaining: list[StagedRows] = []
            is_changed = False
            for batch in stage.batches:
                mine = batch.partition == partition.number and batch.has(sequences).any()
                if not mine:
                    remaining.append(batch)
                    continue
                is_changed = True
                if batch.hashes is not None and not stage.published:
                    # These live for certain, so they have their keys.
                    hashes = batch.hashes[np.isin(batch.sequences, sequences)]
                    self._mender.free_keys(partition, hashes, at_us, frame)
                last = int(sequences[batch.has(sequences)].max()) - int(batch.sequences[0]) + 1
                self._enter(partition, _part(batch, slice(0, last)), stage, at_us)
                if last < len(batch.sequences):
                    remaining.append(_part(batch, slice(last, None)))
            if is_changed:
                stage.batches = remaining
                self._publish_if_not(name, stage, at_us, frame)
                if not stage.batches:
                    self._close(name, stage)

    def _enter(self, partition: Partition, part: StagedRows, stage: Stage, at_us: int) -> None:
        staged = partition.states(partition.ledger.slots(part.sequences)) == State.STAGED
        if stage.skip or not stage.published:
            taken = staged & self._taken(partition, part)
            self._give_up(partition, part.sequences[taken], at_us)
            staged &= ~taken
            if part.hashes is not None:
                partition.claim_keys(part.hashes[staged], part.sequences[staged])
        sequences = part.sequences[staged]
        if not len(sequences):
            return
        slots = partition.ledger.slots(sequences)
        partition.turn(slots, Verb.PUBLISH)
        partition.times.schedule(sequences, partition.arena.due.take(slots))

    def _give_up(self, partition: Partition, sequences: Int64s, at_us: int) -> None:
        """Staged rows that may have been left out, or have landed and ended: they go."""
        if len(sequences):
            slots = partition.ledger.slots(sequences)
            partition.finish(sequences, slots, Verb.DROP, at_us)
            self._mender.lost[partition.topic, partition.number].add_rows(sequences)

    def _carried(self, event: sinks.SinkCarried, frame: int) -> None:
        partition = self._state.partition(event)
        row = np.array([event.sequence], dtype=np.int64)
        self._mender.skip_to(partition, event.sequence + 1)
        self._mender.lost[partition.topic, partition.number].end(row)
        stage = self._state.stages.get(event.stage)
        if stage is None:
            return
        self._publish_if_not(event.stage, stage, event.at_us, frame)
        self._pass(stage, event, row, lands=False)
        if self._is_next(stage, event.partition, row):
            self._know_sink(stage, event.at_us)
            self._mender.make_so(event, frame)

    def _drop(self, name: str, stage: Stage, at_us: int) -> None:
        topic = self._state.topics.get(stage.topic)
        for batch in stage.batches if topic is not None else []:
            assert topic is not None
            partition = topic.partitions[batch.partition]
            slots = partition.ledger.slots(batch.sequences)
            partition.finish(batch.sequences, slots, Verb.DROP, at_us)
        self._close(name, stage)

    def _close(self, name: str, stage: Stage) -> None:
        self._state.close_stage(name)
        sink = self._state.sinks.all.get(stage.sink)
        if sink is not None:
            sink.left.discard(name)


def _ids(batch: StagedRows) -> Int64s:
    return batch.sequences + (batch.partition << SEQUENCE_BITS)


def _part(batch: StagedRows, rows: slice) -> StagedRows:
    hashes = None if batch.hashes is None else batch.hashes[rows]
    return StagedRows(batch.partition, batch.sequences[rows], hashes)
