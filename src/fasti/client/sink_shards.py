"""Sinks over several shards: which rows of a batch go where, and what the shards' answers are together.

A batch is staged and published on each shard by itself, and each remembers (sink, batch). So a batch
that was published on some shards when its writer died is published again, and those that have it change
nothing. That holds only if the same rows go to the same shards when they are written again: by their
partition, id or key, and rows without any by a hash of their payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from fasti.client.shards.parallel import each
from fasti.client.transport import Header, Transport
from fasti.core.layout import Layout
from fasti.errors import FastiError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fasti.client.sinks import SinkState

    Int64s = NDArray[np.int64]

T = TypeVar("T")


def shards_of_rows(layout: Layout, batch: pa.RecordBatch) -> Int64s:
    """The shard of each row, the same whenever it is asked."""
    shards = np.full(batch.num_rows, -1, dtype=np.int64)
    for name, find in _WAYS:
        place = batch.schema.get_field_index(name)
        if place < 0:
            continue
        column = batch.column(place)
        rows = np.flatnonzero((shards < 0) & np.asarray(column.is_valid()))
        if len(rows):
            chosen = column if len(rows) == len(shards) else column.take(pa.array(rows))
            shards[rows] = find(layout, chosen)
        if len(rows) == len(shards):
            return shards
    # Of a row that has nothing at all any shard says what is wrong with it.
    shards[shards < 0] = layout.all_shards[0]
    return shards


def _by_partition(layout: Layout, column: pa.Array) -> Int64s:
    numbers = np.asarray(column.cast(pa.int64()))
    return layout.by_partition[numbers % layout.partitions]


def _by_id(layout: Layout, column: pa.Array) -> Int64s:
    return layout.shards_of_ids(np.asarray(column.cast(pa.int64())))


def _by_key(layout: Layout, column: pa.Array) -> Int64s:
    return layout.shards_of_keys(column)


def _by_payload(layout: Layout, column: pa.Array) -> Int64s:
    from fasti.core.columns.xxh64 import public_hashes

    homes = np.array(layout.all_shards, dtype=np.int64)
    hashes = public_hashes(column) % np.uint64(len(homes))
    return homes[hashes.astype(np.int64)]


# What decides, the first that a row has.
_WAYS: tuple[tuple[str, Callable[[Layout, pa.Array], Any]], ...] = (
    ("partition", _by_partition),
    ("id", _by_id),
    ("key", _by_key),
    ("payload", _by_payload),
)


def split(layout: Layout, batch: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
    """The rows of each shard that has any, in their order."""
    shards = shards_of_rows(layout, batch)
    for shard in np.unique(shards).tolist():
        rows = np.flatnonzero(shards == shard)
        yield shard, batch if len(rows) == len(shards) else batch.take(pa.array(rows))


# Names of stages


def spread_name(name: str, shards: Iterable[int]) -> str:
    """The name of what was staged under one name on these shards."""
    return f"{name}@{'.'.join(map(str, sorted(shards)))}"


def by_shard(stages: Sequence[str], count: int) -> tuple[list[list[str]], list[str]]:
    """Of each shard, the names of its stages; and names that no stage of so many shards can have."""
    if count == 1:
        return [[stage for stage in stages if stage]], []
    names: list[list[str]] = [[] for _ in range(count)]
    unknown = []
    for stage in stages:
        name, _, listed = stage.rpartition("@")
        numbers = [int(number) if number.isdecimal() else count for number in listed.split(".")]
        if stage and (not name or max(numbers) >= count):
            unknown.append(stage)
        elif stage:
            for number in numbers:
                names[number].append(name)
    return names, unknown


# Answers


def on_all(transport: Transport, ask: Callable[[int, Transport], T]) -> list[T]:
    """Asks every shard, several at once: the answers by their numbers.

    Raises the first error when all have answered.
    """
    numbers = range(transport.shard_count)
    answers = each(transport.runtime, lambda n: ask(n, transport.shard(n)), numbers)
    results = []
    for answer in answers:
        if isinstance(answer, FastiError):
            raise answer
        results.append(answer)
    return results


def summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by word, over all shards."""
    total: dict[str, int] = {}
    for count in counts:
        for word, number in count.items():
            total[word] = total.get(word, 0) + number
    return total


def merged_states(by_number: Sequence[Sequence[SinkState]]) -> list[SinkState]:
    """What the shards know of sinks, each together, by name."""
    named: dict[str, list[SinkState]] = {}
    for states in by_number:
        for state in states:
            named.setdefault(state.sink, []).append(state)
    return [_merged(named[name], len(by_number)) for name in sorted(named)]


def _merged(states: Sequence[SinkState], count: int) -> SinkState:
    """A batch that some shards don't have has not happened whole: the last one that has is told."""
    from fasti.client.sinks import SinkState

    batches = [state.batch for state in states if state.batch is not None]
    whole = len(batches) == count
    latest = [state for state in states if state.batch is not None and state.batch == max(batches)]
    times = [state.published_us for state in states if state.published_us is not None]
    return SinkState(
        sink=states[0].sink,
        batch=min(batches) if whole else None,
        operation=next((state.operation for state in states if state.operation), ""),
        done=all(state.done for state in states) and (not batches or len(latest) == count),
        published_us=max(times, default=None),
        outcomes=summed(state.outcomes for state in latest),
        stages=sum(state.stages for state in states),
        rows=sum(state.rows for state in states),
    )


def merged_answers(replies: Sequence[Header]) -> Header:
    """What became of a batch on all shards."""
    return {
        "rows": sum(int(reply["rows"]) for reply in replies),
        "skipped": sum(int(reply["skipped"]) for reply in replies),
        "repeated": all(reply["repeated"] for reply in replies),
        "outcomes": summed(reply["outcomes"] for reply in replies),
    }


def conflicts_of(errors: Sequence[FastiError], keys_max: int = 100) -> FastiError:
    """The conflicts of several shards as one error."""
    first = errors[0]
    keys = [key for error in errors for key in error.details.get("keys", [])]
    first.details["keys"] = keys[:keys_max]
    first.details["conflicts"] = sum(int(error.details.get("conflicts", 0)) for error in errors)
    return first
