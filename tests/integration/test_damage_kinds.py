"""Damaged payloads as clients of every kind see them: a clear error or a null, never a whole page lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import fasti
from fasti.errors import Corruption

COUNT = 200


def value(number: int) -> bytes:
    return f"value number {number:04d} ".encode() * 5


def flip(data: Path, content: bytes) -> None:
    for path in data.glob("blocks/*.payloads"):
        stored = bytearray(path.read_bytes())
        place = stored.find(content)
        if place >= 0:
            stored[place + 20] ^= 1
            path.write_bytes(stored)
            return
    raise AssertionError("it is in no block")


@pytest.mark.one_shard
def test_entries_of_a_key_value_topic(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("kv", kind="kv")
        entries = client.kv("kv")
        keys = [f"key-{n:04d}" for n in range(COUNT)]
        assert entries.put_many(keys, [value(n) for n in range(COUNT)]).all_ok
        client.checkpoint()
    flip(tmp_path, value(100))
    with fasti.connect(f"embedded:{tmp_path}") as client:
        entries = client.kv("kv")
        with pytest.raises(Corruption):
            entries.get("key-0100")
        good = entries.get("key-0001")
        assert good is not None
        assert good.value == value(1)
        found = [row for batch in entries.scan() for row in batch.to_pylist()]
        rows = {row["key"]: row["value"] for row in found}
        lost = [key for key, stored in rows.items() if stored is None]
        assert "key-0100" in lost
        assert len(lost) < 15
        assert len(rows) == COUNT
        # A new value is as good as any.
        entries.put("key-0100", b"new")
        again = entries.get("key-0100")
        assert again is not None
        assert again.value == b"new"


@pytest.mark.one_shard
def test_rows_of_a_log(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("log", kind="log")
        client.producer("log").send_batch([value(n) for n in range(COUNT)])
        client.checkpoint()
    flip(tmp_path, value(100))
    with fasti.connect(f"embedded:{tmp_path}") as client:
        with client.reader("log", start="earliest", follow=False) as reader:
            rows = list(reader)
        assert [row.offset for row in rows] == list(range(COUNT))
        lost = [row.offset for row in rows if row.headers.get("fasti-lost") == "true"]
        assert 100 in lost
        assert all(row.payload == value(row.offset) for row in rows if row.offset not in lost)
        assert {row.payload for row in rows if row.offset in lost} == {b""}
