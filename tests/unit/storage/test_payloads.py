"""Payloads by location: from memory, from frames and from blocks, in any order and mixed."""

from __future__ import annotations

import random
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import events as ev
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.core.rows.location import ROW_BITS, in_block, in_frame
from fasti.errors import Corruption, Gone, NotFound
from fasti.storage import payloads as payloads_module
from fasti.storage.event_codec import encode
from fasti.storage.frames import Frame as StoredFrame
from fasti.storage.memory.blocks import MemoryBlocks
from fasti.storage.memory.journal import MemoryJournal
from fasti.storage.payloads import Payloads
from fasti.storage.runs import PAYLOAD_SCHEMA, object_name
from fasti.storage.seals import seal

AT_US = 1_700_000_000_000_000
NAMES = ("payload", "key", "created_us")


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def rows_of(name: str, count: int, **columns: Any) -> Rows:
    return Rows.of([f"{name}{n}".encode() for n in range(count)], **columns)


def append(journal: MemoryJournal, rows: Rows) -> int:
    sequence = journal.last_sequence + 1
    event = ev.Produced(AT_US + sequence, 1, 0, 1, "", "", int64s(0), int64s(0))
    body = encode(Frame(sequence, [event], rows))
    journal.append([StoredFrame(sequence, AT_US, True, True, body)])
    journal.sync()
    return sequence


def name_of(number: int) -> str:
    return object_name(1, number, "payloads")


def names_of(*numbers: int) -> dict[int, str]:
    return {number: name_of(number) for number in numbers}


def put(blocks: MemoryBlocks, number: int, rows: Rows) -> None:
    arrays = []
    for field in PAYLOAD_SCHEMA:
        if field.name in rows.batch.schema.names:
            arrays.append(rows.batch.column(field.name))
        elif field.name == "created_us":
            arrays.append(pa.array([number] * len(rows), pa.int64()))
        else:
            arrays.append(pa.nulls(len(rows), field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)
    blocks.put(name_of(number), seal(batch))


@pytest.fixture
def places() -> tuple[Payloads, dict[int, dict[str, Any]]]:
    """Payloads everywhere, and what must be found at each location."""
    journal, blocks = MemoryJournal(), MemoryBlocks()
    payloads = Payloads(journal, blocks, names_of(1, 2, 40))
    expected: dict[int, dict[str, Any]] = {}

    def expect(location: Any, payload: str, created_us: int, key: str | None = None) -> None:
        headers = [("h", payload)] if key else None
        content = {"payload": payload.encode(), "key": key, "headers": headers}
        expected[int(location)] = content | {
            "content_type": None,
            "subject": None,
            "created_us": created_us,
        }

    for n in range(3):
        sequence = append(journal, rows_of(f"frame{n}-", 4))
        for row in range(4):
            expect(in_frame(sequence, row), f"frame{n}-{row}", AT_US + sequence)
    keyed = rows_of("kept", 2, key=["a", "b"], headers=[[("h", "kept0")], [("h", "kept1")]])
    payloads.keep(journal.last_sequence + 1, keyed, AT_US)
    for row, key in enumerate("ab"):
        expect(in_frame(journal.last_sequence + 1, row), f"kept{row}", AT_US, key)
    # A block has the number of a frame: only one bit tells them apart.
    for number in (1, 2, 40):
        put(blocks, number, rows_of(f"block{number}-", 5))
        for row in range(5):
            location = in_block(number, np.array([row], dtype=np.int64))[0]
            expect(location, f"block{number}-{row}", number)
    return payloads, expected


@pytest.mark.parametrize("seed", range(10))
def test_any_selection_in_any_order(seed: int, places: Any) -> None:
    payloads, expected = places
    rng = random.Random(seed)
    chosen = rng.choices(list(expected), k=rng.choice([1, 2, 30]))
    batch = payloads.gather(int64s(*chosen))
    assert batch.schema == PAYLOAD_SCHEMA
    assert batch.to_pylist() == [expected[location] for location in chosen]
    sizes = payloads.sizes(int64s(*chosen)).tolist()
    assert all(
        size >= len(expected[location]["payload"])
        for size, location in zip(sizes, chosen, strict=True)
    )


def test_nothing_is_found_for_nothing(places: Any) -> None:
    payloads, _ = places
    batch = payloads.gather(int64s())
    assert (batch.schema, batch.num_rows) == (PAYLOAD_SCHEMA, 0)
    assert len(payloads.sizes(int64s())) == 0


def test_sizes_tell_large_rows_from_small_ones() -> None:
    journal, blocks = MemoryJournal(), MemoryBlocks()
    payloads = Payloads(journal, blocks)
    headers = [None, [("a", "x" * 5000)], None]
    rows = Rows.of([b"", b"", b"p" * 70_000], headers=headers, key=[None, "k", None])
    sequence = append(journal, rows)
    small, large, largest = payloads.sizes(in_frame(sequence, np.arange(3))).tolist()
    assert small < 100
    assert 5000 < large < 5200
    assert largest > 70_000


def test_what_was_trimmed_or_deleted_says_so(places: Any) -> None:
    payloads, _ = places
    with pytest.raises(NotFound):
        payloads.gather(in_block(99, int64s(0)))
    with pytest.raises((Gone, NotFound)):
        payloads.gather(int64s(int(in_frame(99, 0))))


def test_a_rotten_block_is_never_handed_out() -> None:
    journal, blocks = MemoryJournal(), MemoryBlocks()
    rows = rows_of("x", 3)
    put(blocks, 7, rows)
    data = bytearray(blocks.get(name_of(7)))
    data[data.index(b"x1")] ^= 4
    blocks.delete(name_of(7))
    blocks.put(name_of(7), [bytes(data)])
    payloads = Payloads(journal, blocks, names_of(7))
    with pytest.raises(Corruption) as caught:
        payloads.gather(in_block(7, int64s(0, 1)))
    assert caught.value.details["file"] == f"blocks/{name_of(7)}"
    assert payloads.damaged(in_block(7, int64s(1))).tolist() == [True]
    found = payloads.gather(in_block(7, int64s(1)), lost=True)
    assert found.column("payload").to_pylist() == [None]
    assert [each.file for each in payloads.damages.files()] == [f"blocks/{name_of(7)}"]


def test_a_block_that_is_good_again_is_read_again() -> None:
    blocks = MemoryBlocks()
    put(blocks, 7, rows_of("x", 3))
    good = bytes(blocks.get(name_of(7)))
    blocks.delete(name_of(7))
    blocks.put(name_of(7), [good[:500] + bytes(len(good) - 500)])
    payloads = Payloads(MemoryJournal(), blocks, names_of(7))
    assert payloads.damaged(in_block(7, int64s(1))).all()
    blocks.delete(name_of(7))
    blocks.put(name_of(7), [good])
    assert payloads.damaged(in_block(7, int64s(1))).all()
    payloads.look_again()
    assert payloads.gather(in_block(7, int64s(1))).column("payload").to_pylist() == [b"x1"]
    assert len(payloads.damages) == 0


def test_a_named_block_that_is_missing_is_lost_and_has_not_moved() -> None:
    payloads = Payloads(MemoryJournal(), MemoryBlocks(), names_of(7))
    with pytest.raises(NotFound):
        payloads.gather(in_block(7, int64s(0)))
    payloads.is_named = lambda name: True
    assert payloads.damaged(in_block(7, int64s(0, 5))).all()


def test_frames_stay_in_memory_until_they_are_written() -> None:
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks(), kept_bytes=100)
    first, second = rows_of("a" * 90, 2), rows_of("b" * 90, 2)
    payloads.keep(1, first, AT_US)
    payloads.keep(2, second, AT_US)
    read = payloads.gather(int64s(int(in_frame(1, 1)), int(in_frame(2, 0))))
    assert [p[:1] for p in read.column("payload").to_pylist()] == [b"a", b"b"]
    append(journal, first)
    append(journal, second)
    payloads.keep(3, rows_of("c", 1), AT_US)
    assert 1 not in payloads._kept
    read = payloads.gather(int64s(int(in_frame(1, 1))))
    assert read.column("payload").to_pylist() == [b"a" * 90 + b"1"]


def test_small_frames_in_memory_are_bounded_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each holds on to kilobytes, though its batch says that it has a few bytes."""
    monkeypatch.setattr(payloads_module, "_BATCHES_MAX", 10)
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    for number in range(1, 31):
        rows = rows_of(f"{number}-", 1)
        payloads.keep(number, rows, AT_US)
        append(journal, rows)
    assert len(payloads._kept) <= 11
    read = payloads.gather(in_frame(int64s(1, 30), int64s(0, 0)))
    assert read.column("payload").to_pylist() == [b"1-0", b"30-0"]


def test_a_small_frame_in_memory_does_not_hold_the_batch_that_it_came_in() -> None:
    payloads = Payloads(MemoryJournal(), MemoryBlocks())
    held = []
    for frame, content in ((1, b"small"), (2, b"large" * 1000)):
        rows = Rows.of([content], key=["k"])
        payloads.keep(frame, rows, AT_US)
        held.append(weakref.ref(rows.batch))
        del rows
        found = payloads.gather(in_frame(frame, int64s(0))).to_pylist()
        assert [(row["payload"], row["key"], row["created_us"]) for row in found] == [
            (content, "k", AT_US)
        ]
    # A piece of the network's buffer goes with a batch. Of a large one that is most of it.
    assert [batch() is None for batch in held] == [True, False]


def test_a_row_that_is_named_often_counts_as_often() -> None:
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    sequence = append(journal, Rows.of([b"p" * 1000, b"", b""]))
    often = in_frame(sequence, np.zeros(100, dtype=np.int64))
    assert payloads.fitting(often, 10_000) < 11
    assert payloads.gather(often, 10_000).num_rows < 11
    assert payloads.fitting(in_frame(sequence, np.arange(3)), 10_000) == 3


def test_only_the_columns_that_are_named(places: Any) -> None:
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    sequence = append(journal, Rows.of([b"a", b"b"], key=["x", "y"]))
    for rows in ([0, 1], [1, 0]):
        read = payloads.gather(in_frame(sequence, int64s(*rows)), names=("key", "headers"))
        assert read.schema.names == ["key", "headers"]
        assert read.column("key").to_pylist() == [["x", "y"][row] for row in rows]


@pytest.mark.parametrize("width", [0, 1, 12, 13, 100])
@pytest.mark.parametrize("odd", [None, "shorter", "longer", "null", "missing"])
def test_values_of_one_length_from_many_places(width: int, odd: str | None) -> None:
    """Gathered in another way than others, and one frame that isn't like the rest is enough."""
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    expected: dict[int, tuple[bytes, str | None]] = {}
    for n in range(20):
        contents = [bytes([65 + n]) * width for _ in range(9)]
        keys: list[str | None] = [f"{n:03}{row}" * (1 + width // 4) for row in range(9)]
        if n == 13 and odd == "shorter":
            contents[4] = b"x"
        if n == 13 and odd == "longer":
            contents = [content + b"+" * row for row, content in enumerate(contents)]
        if n == 13 and odd == "null":
            keys[4] = None
        columns = {} if n == 13 and odd == "missing" else {"key": keys}
        # A slice, so that offsets don't begin with 0.
        batch = Rows.of([b"before", *contents], **({"key": ["b", *keys]} if columns else {})).batch
        sequence = journal.last_sequence + 1
        append(journal, Rows(batch.slice(1)))
        for row in range(9):
            key = keys[row] if columns else None
            expected[int(in_frame(sequence, row))] = contents[row], key
    for seed in range(5):
        chosen = random.Random(seed).choices(list(expected), k=300)
        if seed == 0:
            chosen.sort()
        read = payloads.gather(int64s(*chosen))
        read.validate(full=True)
        found = zip(read.column("payload").to_pylist(), read.column("key").to_pylist(), strict=True)
        assert list(found) == [expected[location] for location in chosen]


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_many_frames_and_blocks_whatever_is_in_them(seed: int) -> None:
    """Lengths from nothing on, nulls, columns that some leave out, headers, moments of their own."""
    rng = random.Random(seed)
    journal, blocks = MemoryJournal(), MemoryBlocks()
    payloads = Payloads(journal, blocks, names_of(*range(1, 13)), kept_bytes=5000)
    expected: dict[int, dict[str, Any]] = {}
    for n in range(36):
        count = rng.randrange(1, 12)
        lengths = rng.choice([[40], [5], [0], [0, 3, 12, 13, 40]])
        columns: dict[str, list[Any]] = {
            "payload": [rng.randbytes(rng.choice(lengths)) for _ in range(count)]
        }
        if rng.random() < 0.7:
            columns["key"] = [
                rng.choice([None, "k", "k" * 12, f"key {row}" * 3]) for row in range(count)
            ]
        if rng.random() < 0.3:
            columns["content_type"] = [rng.choice([None, "text/plain"]) for _ in range(count)]
        if rng.random() < 0.3:
            columns["headers"] = [rng.choice([None, [], [("a", "b")]]) for _ in range(count)]
        in_run = n % 3 == 0
        if not in_run and rng.random() < 0.3:
            columns["created_us"] = [rng.choice([None, 5]) for _ in range(count)]
        contents = columns.pop("payload")
        rows = Rows.of(contents, **columns)
        if in_run:
            put(blocks, n // 3 + 1, rows)
            places = in_block(n // 3 + 1, np.arange(count))
            written_us = n // 3 + 1
        else:
            sequence = append(journal, rows)
            places = in_frame(sequence, np.arange(count))
            written_us = AT_US + sequence
            if rng.random() < 0.5:
                payloads.keep(sequence, rows, written_us)
        for row, place in enumerate(places.tolist()):
            found = {
                name: columns[name][row] if name in columns else None
                for name in PAYLOAD_SCHEMA.names
            }
            found["payload"] = contents[row]
            found["created_us"] = found["created_us"] or written_us
            expected[place] = found
    for count in (1, 10, 500):
        chosen = rng.choices(list(expected), k=count)
        read = payloads.gather(int64s(*chosen))
        read.validate(full=True)
        assert read.to_pylist() == [expected[place] for place in chosen]


@pytest.mark.parametrize("seed", range(6))
def test_what_deliveries_lie_in_is_kept_for_the_next(seed: int) -> None:
    """The same frames, some of them, others too, few and many rows, while frames come and go."""
    rng = random.Random(seed)
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    expected: dict[int, tuple[bytes, str | None, int]] = {}

    def write() -> None:
        width, count = rng.choice([5, 40, 40]), rng.randrange(1, 9)
        contents = [rng.randbytes(width) for _ in range(count)]
        columns = {"key": [f"key {row}" for row in range(count)]} if rng.random() < 0.3 else {}
        sequence = append(journal, Rows.of(contents, **columns))
        for row in range(count):
            key = columns["key"][row] if columns else None
            expected[int(in_frame(sequence, row))] = contents[row], key, AT_US + sequence

    for _ in range(30):
        write()
    for _ in range(60):
        for _ in range(rng.choice([0, 0, 0, 3])):
            write()
        if rng.random() < 0.1:
            trimmed = min(expected) >> ROW_BITS
            payloads.forget(False, lambda frame, trimmed=trimmed: frame > trimmed)
            expected = {place: e for place, e in expected.items() if place >> ROW_BITS > trimmed}
        some = rng.sample(sorted(expected), k=rng.choice([1, 12, len(expected)]))
        chosen = rng.choices(some, k=rng.choice([1, 20, 400]))
        read = payloads.gather(int64s(*chosen), bytes_max=rng.choice([None, 3000]))
        read.validate(full=True)
        found = zip(*(read.column(name).to_pylist() for name in NAMES), strict=True)
        assert list(found) == [expected[place] for place in chosen[: read.num_rows]]
        assert payloads.sizes(int64s(*chosen)).tolist() == [
            64 + len(expected[place][0]) + len(expected[place][1] or "") for place in chosen
        ]


def test_frames_that_are_forgotten_are_not_held_for_the_next_delivery() -> None:
    journal = MemoryJournal()
    payloads = Payloads(journal, MemoryBlocks())
    batches = []
    for n in range(20):
        rows = Rows.of([b"x" * 5000, bytes([n])])
        payloads.keep(append(journal, rows), rows, AT_US)
        batches.append(weakref.ref(rows.batch))
    del rows
    places = [int(in_frame(frame, row)) for frame in range(1, 21) for row in (0, 1)]
    payloads.gather(int64s(*reversed(places)))
    assert all(batch() is not None for batch in batches)
    payloads.forget(False, lambda frame: frame > 5)
    assert [batch() is None for batch in batches] == [True] * 5 + [False] * 15
