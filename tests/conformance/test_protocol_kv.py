"""The protocol from outside: key-value topics."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.conformance.protocol_client import (
    WAIT_S,
    Client,
    Refused,
    expand,
    partition_of,
    refusal,
    statuses,
)

MakeTopic = Callable[..., str]
SECOND_US = 1_000_000
HEADERS = pa.map_(pa.string(), pa.string())
TYPES: dict[str, pa.DataType] = {
    "key": pa.string(),
    "clustering": pa.string(),
    "version": pa.int64(),
    "expires_us": pa.int64(),
    "created_us": pa.int64(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "value": pa.binary(),
}
CHANGES = {"position": pa.int64(), "op": pa.string(), "at_us": pa.int64()} | {
    name: kind for name, kind in TYPES.items() if name != "created_us"
}
COLUMNS = TYPES | {"ttl_us": pa.int64(), "payload": pa.binary()}


def entries(**columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(values, COLUMNS[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def put(client: Client, topic: str, **columns: Any) -> list[tuple[str, int]]:
    found = client.outcomes("kv_put", {"topic": topic}, entries(**columns))
    return [(outcome.status, outcome.version) for outcome in found]


def get(client: Client, topic: str, **columns: Any) -> list[dict[str, Any]]:
    _, (table,) = client.reply("kv_get", {"topic": topic}, entries(**columns))
    return table.to_pylist()


def values(client: Client, topic: str, *keys: str) -> list[bytes | None]:
    return [row["value"] for row in get(client, topic, key=list(keys))]


def scan(client: Client, topic: str, **filters: Any) -> list[tuple[str, str | None]]:
    table = client.read({"version": 1, "call": "kv", "topic": topic, **filters})
    return [(row["key"], row["clustering"]) for row in table.to_pylist()]


class Watcher:
    """An exchange that is read in a thread of its own."""

    def __init__(self, client: Client, topic: str, **more: Any) -> None:
        command = {"version": 1, "call": "watch", "topic": topic, **more}
        self._writer, self._reader = client.open_exchange(json.dumps(command).encode())
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.types: dict[str, pa.DataType] = {}

    def _read(self) -> None:
        try:
            while True:
                chunk = self._reader.read_chunk()
                self._arrived.put((json.loads(chunk.app_metadata.to_pybytes()), chunk.data))
        except BaseException as error:
            self._arrived.put(error)

    def next(self, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The next word of this kind; other idle ones are passed over."""
        while True:
            found = self._arrived.get(timeout=WAIT_S)
            if isinstance(found, BaseException):
                raise found
            metadata, batch = found
            if batch is not None:
                self.types = dict(zip(batch.schema.names, batch.schema.types, strict=True))
            if metadata["kind"] == kind:
                return metadata, [] if batch is None else batch.to_pylist()
            assert metadata["kind"] == "idle", metadata

    def changes(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.next("changes")[1]
        assert len(found) == count
        return found

    def write(self, metadata: dict[str, Any]) -> None:
        self._writer.begin(pa.schema([("id", pa.int64())]))
        self._writer.write_metadata(json.dumps(metadata).encode())

    def end(self) -> None:
        """Says that nobody wants more, and waits until the broker has taken note."""
        with suppress(fl.FlightError, pa.ArrowException):
            self._writer.done_writing()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        with suppress(fl.FlightError, pa.ArrowException):
            self._writer.close()


@contextmanager
def watching(client: Client, topic: str, **more: Any) -> Iterator[Watcher]:
    watcher = Watcher(client, topic, **more)
    try:
        yield watcher
    finally:
        watcher.end()


def told(rows: list[dict[str, Any]]) -> list[tuple[str, str, bytes | None]]:
    return [(row["op"], row["key"], row["value"]) for row in rows]


def test_put_and_get(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=3)
    put(
        client,
        topic,
        key=["a", "b"],
        value=[b"1", b""],
        headers=[[("n", "1")], None],
        content_type=["text/plain", None],
    )
    header, (table,) = client.reply("kv_get", {"topic": topic}, entries(key=["b", "z", "a"]))
    assert header["position"] > 0
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == TYPES | {
        "status": pa.string()
    }
    b, z, a = table.to_pylist()
    assert (b["key"], b["value"], b["status"], b["version"]) == ("b", b"", "ok", 1)
    assert a["headers"] == [("n", "1")]
    assert (a["content_type"], a["expires_us"], a["clustering"]) == ("text/plain", None, None)
    assert abs(a["created_us"] - client.call("clock")["now_us"]) < 60 * SECOND_US
    assert z == dict.fromkeys(TYPES) | {"key": "z", "status": "not_found"}
    _, (bare,) = client.reply("kv_get", {"topic": topic, "value": False}, entries(key=["a"]))
    assert bare.to_pylist()[0]["value"] is None
    assert bare.to_pylist()[0]["version"] == 1


def test_versions(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    assert put(client, topic, key=["a"], value=[b"1"], version=[7]) == [("conflict", 0)]
    assert put(client, topic, key=["a"], value=[b"1"], version=[0]) == [("ok", 1)]
    assert put(client, topic, key=["a"], value=[b"2"], version=[0]) == [("conflict", 1)]
    assert put(client, topic, key=["a"], value=[b"2"], version=[1]) == [("ok", 2)]
    assert put(client, topic, key=["a"], value=[b"3"], version=[None]) == [("ok", 3)]
    gone = client.outcomes("kv_delete", {"topic": topic}, entries(key=["a", "z"], version=[3, 1]))
    assert [(each.status, each.version) for each in gone] == [("ok", 3), ("not_found", 0)]
    # A version never means two things.
    ((status, version),) = put(client, topic, key=["a"], value=[b"4"], version=[0])
    assert status == "ok"
    assert version > 3
    assert put(client, topic, key=["a"], value=[b"5"], version=[3]) == [("conflict", version)]


def test_rows_of_a_batch_happen_one_after_another(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=2)
    keys = ["a", "a", "a", "b", "b"]
    given = [b"1", b"2", b"3", b"4", b"5"]
    answered = put(client, topic, key=keys, value=given, version=[0, 0, 1, None, None])
    assert answered == [("ok", 1), ("conflict", 1), ("ok", 2), ("ok", 1), ("ok", 2)]
    assert values(client, topic, "a", "b") == [b"3", b"5"]
    gone = client.outcomes("kv_delete", {"topic": topic}, entries(key=["a", "a"]))
    assert statuses(gone) == ["ok", "not_found"]


def test_time_to_live(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    now_us = client.call("clock")["now_us"]
    with watching(client, topic) as watcher:
        watcher.next("idle")
        put(client, topic, key=["c"], value=[b"3"], expires_us=[now_us + 3600 * SECOND_US])
        put(client, topic, key=["a", "b"], value=[b"1", b"2"], ttl_us=[100_000, None])
        assert told(watcher.changes(4)) == [
            ("put", "c", b"3"),
            ("put", "a", b"1"),
            ("put", "b", b"2"),
            ("expire", "a", None),
        ]
    assert values(client, topic, "a", "b", "c") == [None, b"2", b"3"]
    assert [row["expires_us"] for row in get(client, topic, key=["b", "c"])] == [
        None,
        now_us + 3600 * SECOND_US,
    ]
    described = client.call("kv_describe", {"topic": topic})
    assert (described["entries"], described["expiring"], described["removed"]) == (2, 1, 1)
    # A put without a time to live makes it stay.
    put(client, topic, key=["c"], value=[b"4"])
    assert get(client, topic, key=["c"])[0]["expires_us"] is None
    assert client.call("kv_describe", {"topic": topic})["expiring"] == 0


def test_clustering_keys_and_scans(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=3)
    assert scan(client, topic) == []
    keys = ["b", "a", "a", "aa", "a", "é", "c"]
    clustering = [None, "y", None, None, "x", None, "z"]
    put(client, topic, key=keys, clustering=clustering, value=[b"v"] * 7)
    ordered = [("a", None), ("a", "x"), ("a", "y"), ("aa", None), ("b", None), ("c", "z")]
    assert scan(client, topic) == [*ordered, ("é", None)]
    assert scan(client, topic, prefix="a") == ordered[:4]
    assert scan(client, topic, prefix="") == [*ordered, ("é", None)]
    assert scan(client, topic, key="a") == ordered[:3]
    assert scan(client, topic, **{"from": ["a", "x"], "to": "b"}) == ordered[1:4]
    assert scan(client, topic, **{"from": ["aa", None]}) == [*ordered[3:], ("é", None)]
    assert scan(client, topic, to=["a", "y"]) == ordered[:2]
    assert scan(client, topic, limit=2) == ordered[:2]
    assert scan(client, topic, limit=0) == []
    assert scan(client, topic, prefix="é") == [("é", None)]
    # What was acknowledged is there, what was deleted is not, and a key stands once.
    put(client, topic, key=["ab", "b"], value=[b"v", b"w"])
    client.call("kv_delete", {"topic": topic}, entries(key=["a"], clustering=["x"]))
    assert scan(client, topic, prefix="a") == [*ordered[:1], *ordered[2:4], ("ab", None)]
    put(client, topic, key=["a"], clustering=["x"], value=[b"again"])
    assert scan(client, topic, key="a") == ordered[:3]
    (ticket,) = client.plan({"version": 1, "call": "kv", "topic": topic, "key": "a"})
    table = client.read(ticket)
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == TYPES
    assert table.column("value").to_pylist() == [b"v", b"again", b"v"]
    bare = client.read({"version": 1, "call": "kv", "topic": topic, "value": False})
    assert bare.column("value").null_count == len(bare) == 8


def test_names_of_one_key_share_its_partition(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=5)
    batch = entries(key=["k"] * 4, clustering=[None, "a", "b", "c"], value=[b""] * 4)
    committed = client.call("transaction", {"commands": [{"op": "kv_put", "topic": topic}]}, batch)
    places = {outcome.id >> 51 for outcome in expand(committed["outcomes"][0])}
    assert places == {partition_of("k", 5)}


def test_many_entries_in_order(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=2)
    names = [f"key-{n:05d}" for n in range(12_000)]
    shuffled = sorted(names, key=lambda name: hash((name, 7)))
    for begin in range(0, len(names), 4_000):
        some = shuffled[begin : begin + 4_000]
        put(client, topic, key=some, value=[name.encode() for name in some])
        table = client.read({"version": 1, "call": "kv", "topic": topic})
        assert table.column("key").to_pylist() == sorted(shuffled[: begin + 4_000])
    assert [value.decode() for value in table.column("value").to_pylist()] == names
    assert scan(client, topic, prefix="key-0700") == [(f"key-0700{n}", None) for n in range(10)]


def test_a_transaction_of_messages_and_entries(client: Client, make_topic: MakeTopic) -> None:
    topic, emails = make_topic(kind="kv"), make_topic()
    commands = [
        {"op": "kv_put", "topic": topic},
        {"op": "produce", "topic": emails},
        {"op": "kv_delete", "topic": topic},
    ]
    message = pa.RecordBatch.from_pydict({"payload": [b"hello"]})
    parts = (entries(key=["a"], value=[b"1"], version=[0]), message, entries(key=["z"]))
    void = client.call("transaction", {"commands": commands}, *parts)
    assert not void["committed"]
    assert [statuses(each) for each in void["outcomes"]] == [
        ["aborted"],
        ["aborted"],
        ["not_found"],
    ]
    assert values(client, topic, "a") == [None]
    assert scan(client, topic) == []
    done = client.call("transaction", {"commands": commands[:2]}, *parts[:2])
    assert done["committed"]
    assert values(client, topic, "a") == [b"1"]
    assert client.call("count", {"topic": emails})["counts"]["ready"] == 1


def test_a_transaction_is_seen_whole(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=2)
    with watching(client, topic) as watcher:
        watcher.next("idle")
        commands = [{"op": "kv_put", "topic": topic}, {"op": "kv_put", "topic": topic}]
        first = entries(key=["a"], value=[b"1"])
        second = entries(key=["b", "c"], value=[b"2", b"3"])
        client.call("transaction", {"commands": commands}, first, second)
        metadata, rows = watcher.next("changes")
        assert {row["position"] for row in rows} == {metadata["position"]}
        assert {row["key"] for row in rows} == {"a", "b", "c"}


def test_watching_from_a_position(client: Client, make_topic: MakeTopic) -> None:
    topic, other = make_topic(kind="kv"), make_topic(kind="kv")
    put(client, topic, key=["a", "b"], value=[b"1", b"2"], clustering=[None, "x"])
    position = client.call("kv_describe", {"topic": topic})["position"]
    put(client, topic, key=["a"], value=[b"3"], headers=[[("n", "1")]])
    put(client, other, key=["a"], value=[b"other"])
    with watching(client, topic, position=position) as watcher:
        assert watcher.next("idle")[0]["position"] == position
        metadata, rows = watcher.next("changes")
        assert watcher.types == CHANGES
        assert told(rows) == [("put", "a", b"3")]
        assert rows[0]["headers"] == [("n", "1")]
        assert rows[0]["version"] == 2
        assert position < rows[0]["position"] == metadata["position"]
        client.call("kv_delete", {"topic": topic}, entries(key=["b"], clustering=["x"]))
        (row,) = watcher.changes(1)
        assert (row["op"], row["key"], row["clustering"]) == ("delete", "b", "x")
        assert (row["value"], row["version"], row["expires_us"]) == (None, None, None)
        last = row["position"]
    with watching(client, topic, position=0, prefix="b") as watcher:
        assert told(watcher.changes(2)) == [("put", "b", b"2"), ("delete", "b", None)]
    with watching(client, topic, position=last) as watcher:
        put(client, topic, key=["c"], value=[b"4"])
        assert told(watcher.changes(1)) == [("put", "c", b"4")]


def test_watching_over_a_checkpoint(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    put(client, topic, key=["a"], value=[b"1"])
    with watching(client, topic) as watcher:
        position = watcher.next("idle")[0]["position"]
        put(client, topic, key=["b"], value=[b"2"])
        client.call("checkpoint")
        put(client, topic, key=["c"], value=[b"3"])
        assert told(watcher.changes(2)) == [("put", "b", b"2"), ("put", "c", b"3")]
    with watching(client, topic, position=position) as watcher:
        assert told(watcher.changes(2)) == [("put", "b", b"2"), ("put", "c", b"3")]


def test_a_position_that_is_not_there(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    now = client.call("kv_describe", {"topic": topic})["position"]
    for position, code in ((now + 1_000_000, "gone"), (-1, "invalid_argument")):
        with pytest.raises(Refused) as refused:
            open_and_wait(client, topic, position=position)
        assert refused.value.code == code
    assert "earliest" in refuse_of(client, topic, position=now + 1_000_000).details


def refuse_of(client: Client, topic: str, **more: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        open_and_wait(client, topic, **more)
    return refused.value


def open_and_wait(client: Client, topic: str, **more: Any) -> None:
    watcher = Watcher(client, topic, **more)
    try:
        watcher.next("idle")
    except BaseException as error:
        raise (refusal(error) or error) from error
    finally:
        watcher.end()


def test_whoever_watches_is_told_why_it_ends(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    watcher = Watcher(client, topic)
    watcher.next("idle")
    client.call("delete_topic", {"topic": topic})
    metadata, _ = watcher.next("error")
    assert metadata["error"]["code"] == "not_found"
    watcher.end()
    again = make_topic(kind="kv")
    talker = Watcher(client, again)
    talker.next("idle")
    talker.write({"op": "ack"})
    assert talker.next("error")[0]["error"]["code"] == "invalid_argument"
    talker.end()


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"key": ["a"]}, "value"),
        ({"value": [b"1"]}, "key"),
        ({"key": [None], "value": [b"1"]}, "key"),
        ({"key": [""], "value": [b"1"]}, "key"),
        ({"key": ["a\0b"], "value": [b"1"]}, "key"),
        ({"key": ["a"], "clustering": ["b\0c"], "value": [b"1"]}, "clustering"),
        ({"key": ["a"], "clustering": [""], "value": [b"1"]}, "clustering"),
        ({"key": ["a"], "value": [None]}, "value"),
        ({"key": ["a"], "value": [b"1"], "version": [-1]}, "version"),
        ({"key": ["a"], "value": [b"1"], "ttl_us": [0]}, "ttl_us"),
        ({"key": ["a"], "value": [b"1"], "expires_us": [1]}, "expires_us"),
        ({"key": ["a"], "value": [b"1"], "ttl_us": [1], "expires_us": [1 << 60]}, "ttl_us"),
        ({"key": ["a" * 600], "value": [b"1"]}, "key_bytes_max"),
        ({"key": ["a" * 300], "clustering": ["b" * 300], "value": [b"1"]}, "key_bytes_max"),
        ({"key": ["a"], "value": [b"1"], "payload": [b"1"]}, "payload"),
        ({"key": [], "value": []}, "key"),
    ],
)
def test_puts_that_are_refused(
    client: Client, make_topic: MakeTopic, columns: dict[str, Any], field: str
) -> None:
    topic = make_topic(kind="kv")
    with pytest.raises(Refused) as refused:
        put(client, topic, **columns)
    assert refused.value.code == "invalid_argument"
    assert refused.value.details.get("field") == field
    assert client.call("kv_describe", {"topic": topic})["entries"] == 0


@pytest.mark.parametrize(
    "filters",
    [
        {"prefix": "a", "key": "b"},
        {"prefix": "a", "from": "b"},
        {"prefix": 1},
        {"key": ["a"]},
        {"from": []},
        {"from": ["a", "b", "c"]},
        {"from": [None, "b"]},
        {"to": 7},
        {"to": "a\0b"},
        {"limit": -1},
        {"limit": "1"},
        {"value": "yes"},
        {"partition": 0},
    ],
)
def test_scans_that_are_refused(
    client: Client, make_topic: MakeTopic, filters: dict[str, Any]
) -> None:
    topic = make_topic(kind="kv")
    with pytest.raises(Refused) as refused:
        scan(client, topic, **filters)
    assert refused.value.code == "invalid_argument"


def test_what_is_no_key_value_topic(client: Client, make_topic: MakeTopic) -> None:
    emails, topic = make_topic(), make_topic(kind="kv")
    for call in (
        lambda: put(client, emails, key=["a"], value=[b"1"]),
        lambda: get(client, emails, key=["a"]),
        lambda: client.call("kv_describe", {"topic": emails}),
        lambda: scan(client, emails),
        lambda: client.send(topic, pa.RecordBatch.from_pydict({"payload": [b"1"]})),
        lambda: client.list(topic),
        lambda: open_and_wait(client, emails),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == "invalid_argument"
    with pytest.raises(Refused) as refused:
        put(client, "nowhere", key=["a"], value=[b"1"])
    assert refused.value.code == "not_found"


def test_metrics_of_entries(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv")
    put(client, topic, key=["a", "b", "c"], value=[b"1"] * 3, ttl_us=[None, None, 3600 * SECOND_US])
    client.call("kv_delete", {"topic": topic}, entries(key=["a"]))
    with watching(client, topic) as watcher:
        watcher.next("idle")
        text = client.call("metrics")["text"]
    assert f'fasti_kv_entries{{topic="{topic}"}} 2.0' in text
    assert f'fasti_kv_expiring_entries{{topic="{topic}"}} 1.0' in text
    assert f'fasti_kv_removed_entries_total{{topic="{topic}"}} 1.0' in text
    assert "fasti_watchers 1.0" in text
