"""What sinks added to the formats: their events, and their part of the state block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fasti.core.capsule import Capsule, _capture_stage, _restore_stage
from fasti.core.events import Event
from fasti.core.replies import Frame
from fasti.core.rows.memory import Memory
from fasti.core.sinks.book import Sink
from fasti.core.sinks.events import (
    SinkCarried,
    SinkForgotten,
    SinkPublished,
    SinkStageOpened,
    StageLanded,
    StageRowsDropped,
)
from fasti.core.state import ShardState
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.storage.state_block import decode_state, encode_state
from tests.golden.bodies import (
    AT_US,
    body_of,
    check_read,
    check_written,
    content_of,
    int64s,
    joined,
    same,
)

BODY = Path(__file__).parent / "frame-body-sinks"
STATE = Path(__file__).parent / "block-sinks.state"


def frame() -> Frame:
    stage = "nächtlich/töpic/7/0/1"
    events: list[Event] = [
        SinkStageOpened(AT_US, stage, 1, 2, "nächtlich", 7, "move", "owner"),
        SinkPublished(AT_US, "nächtlich", 7, "produce", 1, [stage, "other"]),
        StageLanded(AT_US, stage, 1, 2, int64s(4, 5, 6), int64s()),
        StageLanded(AT_US, stage, 1, 2, int64s(7, 9), int64s(8)),
        StageRowsDropped(AT_US, "other", 1, 0, int64s(1, 2)),
        SinkCarried(AT_US, "nächtlich", stage, 3, 0, 17, {"ok": 3, "not_found": 2}),
        SinkForgotten(AT_US, "nächtlich"),
    ]
    return Frame(5, events, None)


def shard() -> ShardState:
    state = ShardState(Memory(1 << 20, 16))
    state.sinks.all["a"] = Sink("a", 3, "produce", AT_US, {"ok": 5, "conflict": 1}, {"s", "t"})
    state.sinks.all["b"] = Sink("b", 0, "put", AT_US + 1)
    hashes = np.array([[1, 2], [3, 4]], dtype=np.uint64)
    stage = Stage(1, AT_US, published=True, skip=True, sink="a", batch=3, operation="produce")
    stage.target, stage.owner = 1, "owner"
    stage.add(StagedRows(2, int64s(4, 5), hashes), 2)
    state.stages["s"] = state.publishing["s"] = stage
    parcels = Stage(9, AT_US, dropping=True, sink="b", batch=1, operation="put", target=2)
    parcels.add(StagedRows(0, int64s(7), None), 5_000)
    state.stages["p"] = state.dropping["p"] = parcels
    return state


def state() -> Capsule:
    columns: dict[str, Any] = {}
    made = shard()
    stages = [_capture_stage(*item, columns) for item in made.stages.items()]
    return Capsule({"sinks": made.sinks.capture(), "stages": stages}, columns)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), STATE: joined(encode_state(state()))}


def test_events_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_events_are_read_as_ever() -> None:
    check_read(BODY, frame())


def test_the_state_is_written_as_ever() -> None:
    assert content_of(joined(encode_state(state()))) == content_of(STATE.read_bytes())


def test_the_state_is_read_as_ever() -> None:
    capsule = decode_state(memoryview(STATE.read_bytes()), "block")
    was, now = shard(), ShardState(Memory(1 << 20, 16))
    now.sinks.restore(capsule.head["sinks"])
    for described in capsule.head["stages"]:
        _restore_stage(now, described, capsule.columns)
    assert now.sinks.all == was.sinks.all
    for book in ("stages", "publishing", "dropping"):
        assert list(getattr(now, book)) == list(getattr(was, book))
    for name, stage in was.stages.items():
        for field in Stage.__dataclass_fields__:
            if field not in ("batches", "counted_bytes"):
                assert getattr(now.stages[name], field) == getattr(stage, field), field
        for one, other in zip(stage.batches, now.stages[name].batches, strict=True):
            assert one.partition == other.partition
            assert same(one.sequences, other.sequences)
            assert (one.hashes is None) == (other.hashes is None)
            assert one.hashes is None or same(one.hashes, other.hashes)
