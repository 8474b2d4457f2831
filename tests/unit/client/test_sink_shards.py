"""Which shard a sink's row goes to: always the same one. And what the shards' answers are together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fasti.client.sink_shards import by_shard, merged_states, shards_of_rows, split, spread_name
from fasti.client.sinks import SinkState
from fasti.core.layout import Layout
from fasti.model import SEQUENCE_BITS

LAYOUT = Layout(4, 8)


def test_rows_without_a_key_go_where_their_payload_says_in_any_order() -> None:
    payloads = [b"row %d" % number for number in range(1000)]
    shards = shards_of_rows(LAYOUT, pa.record_batch({"payload": payloads}))
    assert set(shards.tolist()) == {0, 1, 2, 3}
    assert np.bincount(shards).min() > 150
    order = np.random.default_rng(1).permutation(1000)
    shuffled = pa.record_batch({"payload": [payloads[n] for n in order]})
    assert (shards_of_rows(LAYOUT, shuffled) == shards[order]).all()
    narrow = Layout(4, 8, "there", 2)
    found = shards_of_rows(narrow, pa.record_batch({"payload": payloads}))
    assert sorted(set(found.tolist())) == narrow.all_shards


def test_a_partition_an_id_or_a_key_decides_before_the_payload() -> None:
    keys = [f"k{number}" for number in range(50)]
    payload = [b"same"] * 50
    by_key = shards_of_rows(LAYOUT, pa.record_batch({"payload": payload, "key": keys}))
    assert by_key.tolist() == [LAYOUT.shard_of_key(key) for key in keys]
    ids = [(number % 8) << SEQUENCE_BITS | 1 for number in range(50)]
    by_id = shards_of_rows(LAYOUT, pa.record_batch({"id": ids, "payload": payload, "key": keys}))
    assert by_id.tolist() == [LAYOUT.shard_of(number % 8) for number in range(50)]
    some = pa.record_batch(
        {
            "payload": payload,
            "key": [key if number % 2 else None for number, key in enumerate(keys)],
            "partition": pa.array([3 if number < 10 else None for number in range(50)], pa.int32()),
        }
    )
    shards = shards_of_rows(LAYOUT, some).tolist()
    assert set(shards[:10]) == {LAYOUT.shard_of(3)}
    assert shards[11::2] == by_key.tolist()[11::2]
    assert len(set(shards[10::2])) == 1


def test_a_batch_is_split_without_losing_the_order_of_a_shard() -> None:
    batch = pa.record_batch({"payload": [b"%d" % number for number in range(200)]})
    parts = dict(split(LAYOUT, batch))
    rows = [row for part in parts.values() for row in part.column("payload").to_pylist()]
    assert sorted(rows) == sorted(batch.column("payload").to_pylist())
    for part in parts.values():
        numbers = [int(payload) for payload in part.column("payload").to_pylist()]
        assert numbers == sorted(numbers)
    assert list(split(Layout(4, 1), batch)) == [(Layout(4, 1).all_shards[0], batch)]


def test_the_name_of_a_stage_says_on_which_shards_it_is() -> None:
    name = "nightly@home/emails/7/0/0"
    spread = spread_name(name, [2, 0])
    assert by_shard([spread, ""], 3) == ([[name], [], [name]], [])
    # With one shard names are as they were.
    assert by_shard([name, ""], 1) == ([[name]], [])
    wrong = [name, f"{name}@5", f"{name}@", "@1", f"{name}@x"]
    assert by_shard(wrong, 3) == ([[], [], []], wrong)


def state(batch: int | None, done: bool = True, rows: int = 0, ok: int = 0) -> SinkState:
    at_us = None if batch is None else batch * 10
    outcomes = {"ok": ok} if ok else {}
    return SinkState("s", batch, "produce", done, at_us, outcomes, int(rows > 0), rows)


def test_a_batch_counts_as_published_when_every_shard_has_it() -> None:
    (whole,) = merged_states([[state(7, ok=3)], [state(7, ok=4)]])
    assert (whole.batch, whole.done, whole.outcomes) == (7, True, {"ok": 7})
    (half,) = merged_states([[state(7, ok=3)], [state(6, ok=4, rows=5)]])
    assert (half.batch, half.done, half.outcomes, half.rows) == (6, False, {"ok": 3}, 5)
    (first,) = merged_states([[state(0, ok=3)], []])
    assert (first.batch, first.done) == (None, False)
    (staged,) = merged_states([[state(None, rows=2)], []])
    assert (staged.batch, staged.rows, staged.published_us) == (None, 2, None)
    assert merged_states([[], []]) == []
