"""Everything durable of a shard that is not a row: what a checkpoint keeps in its state block.

`capture` is called by the engine when a checkpoint begins, together with a snapshot of the rows, and
only copies; `restore` puts it back into a fresh engine before the rows are read. Names and
numbers go into `head`, which is plain values, and columns into `columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.producers import Producer, pack_receipts, unpack_receipts
from fasti.core.state import ShardState, Topic
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.model import State, TopicSettings

Int64s = NDArray[np.int64]

# What there is to say of a partition that never had a message.
_NO_ROWS = {"next_sequence": 1, "done": 0, "cancelled": 0}
# What a stage has besides, if it is a sink's.
_OF_SINKS = ("skip", "sink", "batch", "operation", "target", "owner", "total")


@dataclass(slots=True)
class Capsule:
    """Plain values and columns."""

    head: dict[str, Any]
    # Or who makes them, for those that the sequencer has no time to make.
    columns: dict[str, Any]


def capture(state: ShardState) -> Capsule:
    """Copies what is durable beside the rows."""
    memory = state.memory
    columns: dict[str, Any] = {}
    head: dict[str, Any] = {
        "next_topic": state.next_topic,
        "last_at_us": state.last_at_us,
        "next_frame": state.next_frame,
        "next_token": memory.leases.next_token,
        "owners": memory.owners.all(),
        "reasons": memory.reasons.all(),
        "topics": [_capture_topic(topic, columns) for topic in state.topics.values()],
        "stages": [_capture_stage(*item, columns) for item in state.stages.items()],
        "sinks": state.sinks.capture(),
        "producers": _capture_producers(state, columns),
        "consumers": _capture_leases(state, columns),
        "directory": state.directory.capture(),
    }
    if state.catalogue.version:
        head["catalogue"] = state.catalogue.capture()
    if len(state.calls) or state.calls.forgotten_us:
        head["calls"] = state.calls.capture(columns)
    bitmaps = memory.marks.bitmaps()
    columns["marks.block"] = np.array(list(bitmaps), dtype=np.int64)
    columns["marks.bytes"] = np.array([len(b) for b in bitmaps.values()], dtype=np.int64)
    columns["marks.bits"] = np.concatenate([*bitmaps.values(), np.zeros(0, dtype=np.uint8)])
    return Capsule(head, columns)


def restore(state: ShardState, capsule: Capsule) -> None:
    """Puts it back. Rows, leases of rows and marks follow, when the blocks are read."""
    head, columns = capsule.head, capsule.columns
    memory = state.memory
    state.next_topic, state.last_at_us = head["next_topic"], head["last_at_us"]
    state.next_frame = head["next_frame"]
    memory.leases.next_token = head["next_token"]
    for name in head["owners"][1:]:
        memory.owners.number(name)
    memory.reasons.restore(head["reasons"])
    for described in head["topics"]:
        _restore_topic(state, described, columns)
    if "catalogue" in head:
        state.catalogue.restore(head["catalogue"])
    state.directory.restore(head["directory"])
    for described in head["stages"]:
        _restore_stage(state, described, columns)
    state.sinks.restore(head["sinks"])
    _restore_producers(state, head["producers"], columns)
    if "calls" in head:
        state.calls.restore(head["calls"], columns)


def dead_rows(capsule: Capsule) -> dict[int, NDArray[np.uint8]]:
    """The bitmap of dead rows of each block that has any."""
    columns = capsule.columns
    ends = np.cumsum(columns["marks.bytes"])
    pieces = np.split(columns["marks.bits"], ends[:-1]) if len(ends) else []
    blocks = columns["marks.block"].tolist()
    return {block: bits.copy() for block, bits in zip(blocks, pieces, strict=True)}


def restore_leases(state: ShardState, capsule: Capsule) -> None:
    """Leases, once the rows are there. They have no deadline yet: `Engine.start` arms them."""
    leases, columns = state.memory.leases, capsule.columns
    since, reasons = columns["lease.since"], columns["lease.reason"]
    for reason, uses in zip(*np.unique(reasons, return_counts=True), strict=True):
        state.memory.reasons.use(int(reason), int(uses))
    names = capsule.head["consumers"]
    for number, name in enumerate(names):
        mine = np.flatnonzero(columns["lease.consumer"] == number)
        consumer = state.memory.consumers.number(name)
        state.memory.consumers.use(consumer, len(mine))
        places = np.stack([columns["lease.topic"][mine], columns["lease.partition"][mine]])
        for topic, partition in np.unique(places, axis=1).T.tolist():
            rows = mine[(places[0] == topic) & (places[1] == partition)]
            sequences = columns["lease.sequence"][rows]
            tokens, lengths = columns["lease.token"][rows], columns["lease.length"][rows]
            terms = (tokens, lengths, since[rows], reasons[rows])
            held = leases.open(sequences, topic, partition, consumer, *terms)
            owner = state.topics[topic]
            if owner.partitions:
                ledger = owner.partitions[partition].ledger
                state.memory.arena.lease[ledger.slots(sequences)] = held
            else:
                owner.kind.restore_leases(owner, partition, sequences, held)


def _capture_topic(topic: Topic, columns: dict[str, Any]) -> dict[str, Any]:
    partitions = [_NO_ROWS] * len(topic.partitions)
    for partition in topic.partitions.made():
        if partition.outcomes.remembered:
            prefix = f"outcome.{topic.number}.{partition.number}."
            for name, values in partition.outcomes.columns().items():
                columns[prefix + name] = values
        partitions[partition.number] = {
            "next_sequence": partition.ledger.next_sequence,
            "done": int(partition.counts[State.DONE]),
            "cancelled": int(partition.counts[State.CANCELLED]),
        }
    described = {
        "number": topic.number,
        "name": topic.name,
        "settings": topic.settings.to_dict(),
        "partitions": partitions,
        "bindings": topic.bindings,
        "bindings_version": topic.bindings_version,
        "active_us": topic.active_us,
        "paused": topic.paused,
        "kind": topic.kind.capture(topic, columns),
    }
    if topic.catalogue_number:
        described["catalogue"] = [topic.catalogue_number, topic.catalogue_version]
    return described


def _restore_topic(state: ShardState, described: dict[str, Any], columns: dict[str, Any]) -> None:
    settings = TopicSettings.from_dict(described["settings"])
    topic = state.make_topic(described["number"], described["name"], settings)
    bindings = [(pattern, target) for pattern, target in described["bindings"]]
    state.set_bindings(topic, bindings)
    topic.bindings_version = described["bindings_version"]
    topic.active_us = described["active_us"]
    topic.paused = described["paused"]
    topic.catalogue_number, topic.catalogue_version = described.get("catalogue", (0, 0))
    for number, values in enumerate(described["partitions"]):
        if values != _NO_ROWS:
            _restore_partition(topic.partitions[number], values, columns)
    topic.kind.restore(topic, described["kind"], columns)


def _restore_partition(
    partition: Partition, values: dict[str, int], columns: dict[str, Any]
) -> None:
    partition.ledger.next_sequence = values["next_sequence"]
    partition.counts[State.DONE] = values["done"]
    partition.counts[State.CANCELLED] = values["cancelled"]
    prefix = f"outcome.{partition.topic}.{partition.number}."
    if prefix + "sequence" in columns:
        names = ("sequence", "at_us", "state")
        partition.outcomes.restore({name: columns[prefix + name] for name in names})


def _capture_stage(name: str, stage: Stage, columns: dict[str, Any]) -> dict[str, Any]:
    batches = []
    for batch in stage.batches:
        place = f"stage.{len(columns)}."
        columns[place + "sequences"] = batch.sequences
        if batch.hashes is not None:
            # Copied by whoever writes them: a stage may have millions, and they never change.
            columns[place + "first"] = partial(np.ascontiguousarray, batch.hashes[:, 0])
            columns[place + "last"] = partial(np.ascontiguousarray, batch.hashes[:, 1])
        batches.append([batch.partition, place, batch.hashes is not None])
    return {
        "name": name,
        "topic": stage.topic,
        "opened_at_us": stage.opened_at_us,
        "published": stage.published,
        "dropping": stage.dropping,
        "skipped": sorted(stage.skipped),
        "batches": batches,
        **{field: getattr(stage, field) for field in _OF_SINKS},
    }


def _restore_stage(state: ShardState, described: dict[str, Any], columns: dict[str, Any]) -> None:
    stage = Stage(described["topic"], described["opened_at_us"], described["published"])
    stage.dropping = described["dropping"]
    stage.skipped = set(described["skipped"])
    for partition, place, keyed in described["batches"]:
        hashes = None
        if keyed:
            hashes = np.stack([columns[place + "first"], columns[place + "last"]], axis=1)
        stage.add(StagedRows(partition, columns[place + "sequences"], hashes), 0)
    for field in _OF_SINKS:
        setattr(stage, field, described[field])
    state.open_stage(described["name"], stage)
    if stage.published:
        state.publishing[described["name"]] = stage
    elif stage.dropping:
        state.dropping[described["name"]] = stage


def _capture_producers(state: ShardState, columns: dict[str, Any]) -> list[Any]:
    producers = state.producers.all()
    receipts = [receipt for producer in producers.values() for receipt in producer.receipts]
    pack_receipts("receipt", receipts, columns)
    return [
        [name, p.last_sequence, p.known_until_us, [r.numbers() for r in p.receipts], p.seen_us]
        for name, p in producers.items()
    ]


def _restore_producers(state: ShardState, described: list[Any], columns: dict[str, Any]) -> None:
    numbers = [numbers for each in described for numbers in each[3]]
    made = unpack_receipts("receipt", numbers, columns)
    for name, last_sequence, known_until_us, own, seen_us in described:
        receipts = [*islice(made, len(own))]
        state.producers.set(name, Producer(last_sequence, known_until_us, seen_us, receipts))


def _capture_leases(state: ShardState, columns: dict[str, Any]) -> list[str]:
    """Leases with consumers numbered anew; returns their names."""
    captured = state.memory.leases.columns()
    numbers, renumbered = np.unique(captured["consumer"], return_inverse=True)
    for name, values in captured.items():
        columns[f"lease.{name}"] = values.astype(np.int64)
    columns["lease.consumer"] = renumbered.astype(np.int64)
    return [state.memory.consumers.name(int(number)) for number in numbers]
