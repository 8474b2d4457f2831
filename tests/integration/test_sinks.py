"""Sinks over the wire: every operation once, whatever is killed and sent again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.broker.caller import EMBEDDED
from fasti.broker.launch import BrokerProcess
from fasti.broker.sinks.rows import PARCEL_ROWS
from fasti.client.sinks import Published, Sink
from fasti.errors import (
    AlreadyExists,
    FastiError,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    StorageFailed,
)

FAR_US = 4_000_000_000_000_000
SMALL = {"segment_size": "1MiB", "checkpoint_size": "2MiB"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {**SMALL, "limits.sinks_max": 40, "limits.caller_share": 100}
    with BrokerProcess(tmp_path_factory.mktemp("sinks"), settings=settings) as broker:
        yield broker


@pytest.fixture(params=["flight", "embedded"])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, broker: BrokerProcess
) -> Iterator[fasti.Client]:
    address = broker.address if request.param == "flight" else f"embedded:{tmp_path}"
    with fasti.connect(address) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """One for each test: the broker is shared."""
    return request.node.name.split("[")[0] + request.node.callspec.id


def messages(keys: list[str | None], **columns: Any) -> pa.RecordBatch:
    payloads = [f"payload of {key}".encode() for key in keys]
    due = [FAR_US] * len(keys)
    given = {"payload": pa.array(payloads, pa.binary()), "due_us": pa.array(due, pa.int64())}
    return pa.RecordBatch.from_pydict({**given, "key": pa.array(keys, pa.string()), **columns})


def staged(
    sink: Sink, batch: int, rows: pa.RecordBatch, partition: int = 0, attempt: int = 0
) -> str:
    with sink.stage(batch, partition, attempt) as stage:
        stage.write(rows)
    assert stage.staged.rows == rows.num_rows
    return stage.staged.name


def once(sink: Sink, batch: int, rows: pa.RecordBatch) -> Published:
    """Published, and once more: the second time is as the first."""
    names = [staged(sink, batch, rows)]
    found = sink.publish(batch, names)
    again = sink.publish(batch, names)
    assert (again.rows, again.outcomes) == (found.rows, found.outcomes)
    assert (found.repeated, again.repeated) == (False, True)
    return found


def test_messages_are_there_when_they_are_published(client: fasti.Client, name: str) -> None:
    client.create_topic(name, partitions=3)
    sink = client.sink(name, name)
    assert sink.last_batch() is None
    first = staged(sink, 0, messages(["a", "b", None]))
    second = staged(sink, 0, messages(["c"]), partition=1)
    # Of an attempt that was not committed.
    staged(sink, 0, messages(["x"]), partition=1, attempt=1)
    assert client.messages(name).count()["staged"] == 5
    assert client.messages(name).get(key="a") is None
    assert sink.publish(0, [first, second, ""]) == Published(4, 0, False, {"ok": 4})
    assert sink.last_batch() == 0
    counts = client.messages(name).count()
    assert (counts["scheduled"], counts["staged"]) == (4, 0)
    assert client.messages(name).get(key="b")["payload"] == b"payload of b"
    assert client.messages(name).get(key="x") is None
    # The driver that was killed comes again, with other rows.
    other = staged(sink, 0, messages(["y", "z"]), attempt=2)
    assert sink.publish(0, [other]) == Published(4, 0, True, {"ok": 4})
    assert client.messages(name).get(key="y") is None
    assert sink.publish(1, []) == Published(0, 0, False, {})
    assert sink.publish(0, []) == Published(0, 0, True, {})
    assert sink.forget()
    assert not sink.forget()


def test_a_batch_with_a_taken_key_is_refused_whole(client: fasti.Client, name: str) -> None:
    client.create_topic(name)
    client.producer(name).send(b"there", key="taken", delay="1d").result()
    sink = client.sink(name, name)
    rows = messages([f"key-{n}" for n in range(300)] + ["taken", "key-7"])
    stage = staged(sink, 0, rows)
    with pytest.raises(AlreadyExists) as refused:
        sink.publish(0, [stage])
    assert refused.value.details["conflicts"] == 2
    assert sorted(refused.value.details["keys"]) == ["key-7", "taken"]
    assert sink.last_batch() is None
    counts = client.messages(name).count()
    assert (counts["scheduled"], counts["staged"]) == (1, 302)
    skipping = client.sink(name, name, on_conflict="skip")
    assert skipping.publish(0, [stage]) == Published(300, 2, False, {"ok": 300, "conflict": 2})
    assert client.messages(name).get(key="taken")["payload"] == b"there"
    sink.forget()


def test_many_keys_are_claimed_piece_by_piece(client: fasti.Client, name: str) -> None:
    client.create_topic(name, partitions=2)
    sink = client.sink(name, name)
    keys: list[str | None] = [f"key-{n}" for n in range(30_000)]
    again = messages([*keys[:20_000], "key-19999"])
    stages = [staged(sink, 0, again), staged(sink, 0, messages(keys[20_000:]), partition=1)]
    with pytest.raises(AlreadyExists) as refused:
        sink.publish(0, stages)
    assert refused.value.details == {"conflicts": 1, "keys": ["key-19999"]}
    # Nothing is claimed any more.
    assert client.producer(name).send(b"!", key="key-5", delay="1d").result().status == "ok"
    assert client.messages(name).cancel(key="key-5").status == "ok"
    good = staged(sink, 0, messages(keys[:20_000]), attempt=1)
    assert sink.publish(0, [good, stages[1]]).rows == 30_000
    assert client.messages(name).count()["scheduled"] == 30_000
    assert client.producer(name).send(b"!", key="key-29999", delay="1d").result().status != "ok"
    # As by a stage of nobody's.
    producer = client.producer(name)
    producer.send_batch(payloads=[b""] * 9_000, key=keys[25_000:] + ["n"] * 4_000, stage="plain")
    rows, skipped = client.publish("plain", skip_conflicts=True)
    assert (rows, len(skipped)) == (1, 8_999)
    sink.forget()


def test_changes_by_key_and_by_id(client: fasti.Client, name: str) -> None:
    client.create_topic(name, kind="priority")
    ids = client.producer(name).send_batch(
        payloads=[b"old"] * 4, key=["a", "b", "c", "d"], due=[FAR_US] * 4
    )
    keys = pa.array(["a", "b", "nobody"])
    move = client.sink(name, f"{name}-move", "move")
    due = pa.array([FAR_US + 5] * 3, pa.int64())
    found = once(move, 4, pa.RecordBatch.from_pydict({"key": keys, "due_us": due}))
    assert found == Published(2, 1, False, {"ok": 2, "not_found": 1})
    assert client.messages(name).get(key="a")["due_us"] == FAR_US + 5
    update = client.sink(name, f"{name}-update", "update")
    columns = {"key": keys, "payload": pa.array([b"new"] * 3, pa.binary())}
    assert once(update, 0, pa.RecordBatch.from_pydict(columns)).rows == 2
    row = client.messages(name).get(key="b")
    assert (row["payload"], row["key"], row["version"]) == (b"new", "b", 3)
    columns = {"key": keys, "priority": pa.array([7] * 3, pa.int32())}
    assert once(update, 1, pa.RecordBatch.from_pydict(columns)).rows == 2
    assert client.messages(name).get(key="a")["priority"] == 7
    cancel = client.sink(name, f"{name}-cancel", "cancel")
    named = pa.RecordBatch.from_pydict(
        {"id": pa.array(ids.ids[1:], pa.int64()), "version": pa.array([1, 1, 9], pa.int64())}
    )
    found = once(cancel, 0, named)
    assert found.outcomes == {"ok": 1, "conflict": 2}
    assert client.messages(name).count()["scheduled"] == 3
    for sink in (move, update, cancel):
        assert sink.forget()


def test_rows_of_a_log(client: fasti.Client, name: str) -> None:
    client.create_topic(name, kind="log", partitions=2)
    for batch, operation in enumerate(("append", "produce")):
        sink = client.sink(name, f"{name}-{operation}", operation)
        keys = pa.array([f"{operation}-{n}" for n in range(12_000)])
        payloads = pa.array([b"x"] * 12_000, pa.binary())
        rows = pa.RecordBatch.from_pydict({"payload": payloads, "key": keys})
        assert once(sink, batch, rows) == Published(12_000, 0, False, {"ok": 12_000})
        assert sink.forget()
    found = Counter(message.key for message in client.reader(name))
    assert len(found) == 24_000
    assert set(found.values()) == {1}


def test_entries(client: fasti.Client, name: str) -> None:
    client.create_topic(name, kind="kv", partitions=2)
    client.kv(name).put("old", b"1")
    sink = client.sink(name, name, "put")
    columns = {
        "key": pa.array(["a", "old", "a", "b", "c"]),
        "payload": pa.array([b"1", None, b"2", b"3", None], pa.binary()),
        "clustering": pa.array([None, None, None, "x", None], pa.string()),
    }
    found = once(sink, 0, pa.RecordBatch.from_pydict(columns))
    assert found.outcomes == {"ok": 4, "not_found": 1}
    entries = client.kv(name).range().to_pylist()
    assert [(e["key"], e["clustering"], e["value"]) for e in entries] == [
        ("a", None, b"2"),
        ("b", "x", b"3"),
    ]
    versions = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["a", "n"]),
            "payload": pa.array([b"9", b"9"], pa.binary()),
            "version": pa.array([0, 0], pa.int64()),
        }
    )
    assert once(sink, 1, versions).outcomes == {"ok": 1, "conflict": 1}
    sink.forget()


def test_a_log_that_is_bound_passes_on(client: fasti.Client, name: str) -> None:
    client.create_topic(name, kind="log", relay=True)
    client.create_topic(f"{name}-target", partitions=1)
    client.bindings(name).add(">", f"{name}-target")
    sink = client.sink(name, name, "append")
    rows = pa.RecordBatch.from_pydict({"payload": pa.array([b"1", b"2"], pa.binary())})
    assert once(sink, 0, rows).rows == 2
    assert client.messages(f"{name}-target").count()["ready"] == 2
    client.create_topic(f"{name}-more", partitions=1)
    client.bindings(f"{name}-target").add(">", f"{name}-more")
    bound = client.sink(f"{name}-target", name)
    with pytest.raises(InvalidArgument, match="staged"):
        staged(bound, 1, messages(["a"]))
    sink.forget()


def test_several_topics_share_a_batch(client: fasti.Client, name: str) -> None:
    topics = [f"{name}-{n}" for n in range(3)]
    names = []
    for topic in topics:
        client.create_topic(topic)
        names.append(staged(client.sink(topic, name), 0, messages(["a"])))
    assert client.sink("", name).publish(0, names).rows == 3
    assert all(client.messages(topic).get(key="a") for topic in topics)
    client.sink("", name).forget()


def test_dry_runs_change_nothing(client: fasti.Client, name: str) -> None:
    client.create_topic(name)
    client.producer(name).send_batch(payloads=[b"1", b"2"], key=["a", "b"], due=[FAR_US] * 2)
    view = client.messages(name)
    before = view.list(payload=True)
    keys = ["a", "b", "c"]
    for outcomes in (
        view.cancel(key=keys, dry_run=True),
        view.move(key=keys, due=FAR_US + 1, dry_run=True),
        view.update(key=keys, payload=b"new", dry_run=True),
    ):
        assert outcomes.counts() == {"ok": 2, "not_found": 1}
    assert view.cancel(key="a", version=9, dry_run=True).status == "conflict"
    assert view.list(payload=True) == before


def test_what_is_refused(client: fasti.Client, name: str) -> None:
    kinds = ("timeline", "cron", "log", "kv")
    for kind in kinds:
        client.create_topic(f"{name}-{kind}", kind=kind)
    rows = messages(["a"])
    for kind, operation, field in (
        ("cron", "produce", "operation"),
        ("kv", "produce", "operation"),
        ("timeline", "append", "operation"),
        ("log", "move", "operation"),
        ("timeline", "put", "operation"),
        ("log", "produce", "due_us"),
        ("timeline", "move", "payload"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            staged(client.sink(f"{name}-{kind}", name, operation), 0, rows)
        assert refused.value.details["field"] == field, (kind, operation)
    with pytest.raises(NotFound):
        staged(client.sink("nowhere", name), 0, rows)
    # What the broker keeps for sinks is nobody else's.
    for use in (
        lambda: staged(client.sink("_sinks", name), 0, rows),
        lambda: client.create_topic("_sinks"),
        lambda: client.delete_topic("_sinks"),
        lambda: client.producer("_sinks").send(b"").result(),
    ):
        with pytest.raises((InvalidArgument, NotFound)):
            use()
    sink = client.sink(f"{name}-timeline", name)
    stage = staged(sink, 5, rows)
    for publish in (
        lambda: sink.publish(4, [stage]),
        lambda: sink.publish(5, [stage, stage]),
        lambda: client.sink("", name, "cancel").publish(5, [stage]),
        lambda: client.sink("", "another").publish(5, [stage]),
        lambda: sink.publish(-1, []),
        lambda: client.sink("", "n" * 300).publish(0, []),
    ):
        with pytest.raises(InvalidArgument):
            publish()
    # Where there are several shards the name says which ones have something of it.
    name_there = stage.partition("@")[0]
    never = stage.replace(name_there, "never")
    with pytest.raises(NotFound) as missing:
        sink.publish(5, [stage, never])
    assert missing.value.details["stages"] == ["never"]
    with pytest.raises(InvalidArgument):
        client.sink("", "another").drop([stage])
    with pytest.raises(InvalidArgument):
        client.sink("", name, "nonsense")
    with pytest.raises(InvalidArgument):
        client.publish(name_there)
    assert sink.last_batch() is None
    assert sink.drop([stage, never]) == 1
    assert sink.describe() is None


def test_sinks_beyond_the_limit(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("many")
        made = [client.sink("many", f"many-{n}") for n in range(41)]

        def publish_all() -> None:
            for sink in made:
                sink.publish(0, [])

        with pytest.raises(InvalidArgument) as refused:
            publish_all()
        assert refused.value.details["field"] == "sinks_max"
        with pytest.raises(InvalidArgument):
            staged(made[-1], 0, messages(["a"]))
        for sink in made:
            sink.forget()
        assert made[-1].publish(0, []).rows == 0
        made[-1].forget()


@pytest.mark.parametrize(
    "operation",
    ["append", *(pytest.param(each, marks=pytest.mark.long) for each in ("cancel", "put"))],
)
def test_a_broker_that_is_killed_while_it_carries_out(tmp_path: Path, operation: str) -> None:
    """Each row has its effect once, and the driver hears the counts of all of them."""
    rows = 60_000
    keys = pa.array([f"key-{n}" for n in range(rows)])
    kind = {"append": "log", "cancel": "timeline", "put": "kv"}[operation]
    op = {"append": "appended", "cancel": "cancelled", "put": "put"}[operation]
    columns = {"key": keys}
    if operation != "cancel":
        columns["payload"] = pa.array([b"x" * 200] * rows, pa.binary())
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", kind=kind)
            if operation == "cancel":
                due = pa.array(np.full(rows, FAR_US))
                payloads = pa.array([b""] * rows, pa.binary())
                whole = {"payload": payloads, "due_us": due, "key": keys}
                once(client.sink("t", "before"), 0, pa.RecordBatch.from_pydict(whole))
            sink = client.sink("t", "s", operation)
            stage = staged(sink, 3, pa.RecordBatch.from_pydict(columns))
            start = client.feed().last
            done: list[Any] = []

            def publish() -> None:
                try:
                    done.append(sink.publish(3, [stage]))
                except FastiError as error:
                    done.append(error)

            thread = threading.Thread(target=publish)
            thread.start()
            for _ in range(2):
                # The second time all may be done.
                with client.changes(start=start, follow=True, timeout="2s") as feed:
                    for table in feed:
                        start = feed.position
                        if op in table.column("op").to_pylist():
                            break
                broker.kill()
                broker.start()
            thread.join()
            assert isinstance(done[0], Published), done
            assert (done[0].rows, done[0].outcomes) == (rows, {"ok": rows})
            again = sink.publish(3, [stage])
            assert again == Published(rows, 0, True, {"ok": rows})
            told = Counter(
                key
                for table in client.changes(start="earliest", topic="t")
                for row_op, row_id, key in zip(
                    table.column("op").to_pylist(),
                    table.column("id").to_pylist(),
                    table.column("key").to_pylist(),
                    strict=True,
                )
                if row_op == op
                for key in [row_id if operation == "cancel" else key]
            )
            assert len(told) == rows
            assert set(told.values()) == {1}


def test_a_broker_that_is_killed_while_rows_land(tmp_path: Path) -> None:
    """A writer goes on over the kill, and what is published goes live, all of it, once."""
    rows = 200_000
    with BrokerProcess(tmp_path, settings=SMALL) as broker, fasti.connect(broker.address) as client:
        client.create_topic("t")
        sink = client.sink("t", "s")
        batches = []
        for begin in range(0, rows, 20_000):
            keys: list[str | None] = [f"key-{n}" for n in range(begin, begin + 20_000)]
            batches.append(messages(keys))
        with sink.stage(0, 0, 0) as stage:
            for number, batch in enumerate(batches):
                stage.write(batch)
                if number == 5:
                    broker.kill()
                    broker.start()
        assert stage.staged.rows == rows
        assert client.messages("t").count()["staged"] == rows
        thread = threading.Thread(target=lambda: sink.publish(0, [stage.staged.name]))
        thread.start()
        with client.changes(start="earliest", follow=True) as feed:
            for table in feed:
                if "sink_published" in table.column("op").to_pylist():
                    break
        broker.kill()
        broker.start()
        thread.join()
        assert sink.publish(0, [stage.staged.name]) == Published(rows, 0, True, {"ok": rows})
        counts = client.messages("t").count()
        assert (counts["scheduled"], counts["staged"]) == (rows, 0)
        with pytest.raises(AlreadyExists):
            sink.publish(1, [staged(sink, 1, messages(["key-199999"]))])


@pytest.mark.one_shard
def test_forgetting_waits_until_all_is_done(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t")
        sink = client.sink("t", "s", "cancel")
        stage = staged(sink, 0, pa.RecordBatch.from_pydict({"key": pa.array(["a"])}))
        service = client.transport.service  # type: ignore[attr-defined]
        service.carrier.stop()
        client.transport.call  # noqa: B018
        with pytest.raises(FastiError):
            service.call(
                EMBEDDED,
                "publish_batch",
                {"version": 1, "sink": "s", "batch": 0, "operation": "cancel", "stages": [stage]},
            )
        with pytest.raises(IllegalTransition):
            sink.forget()
    with fasti.connect(f"embedded:{tmp_path}") as client:
        # Carried out by the broker that comes after it, without being asked.
        sink = client.sink("t", "s", "cancel")
        assert sink.publish(0, [stage]) == Published(0, 1, True, {"not_found": 1})
        assert sink.forget()


@pytest.mark.one_shard
def test_parcels_keep_their_order_over_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t", kind="kv")
        service = client.transport.service  # type: ignore[attr-defined]
        shard, make = service.placement.catalogue, service.carrier._command
        made = 0

        def fail_first(*arguments: Any) -> Any:
            nonlocal made
            made += 1
            if made == 1:
                journal = shard.store.journal
                failed = StorageFailed("a bad sector")
                monkeypatch.setattr(journal, "sync", lambda: (_ for _ in ()).throw(failed))
            elif made == 2:
                # The engine that comes next knows nothing of the first parcel.
                while not shard.recoveries:
                    threading.Event().wait(0.001)
            return make(*arguments)

        sink = client.sink("t", "s", "put")
        rows = 2 * PARCEL_ROWS
        columns = {
            "key": pa.array(["k"] * rows),
            "payload": pa.array([b"%d" % (row // PARCEL_ROWS) for row in range(rows)], pa.binary()),
        }
        stage = staged(sink, 0, pa.RecordBatch.from_pydict(columns))
        monkeypatch.setattr(service.carrier, "_command", fail_first)
        assert sink.publish(0, [stage]).rows == rows
        assert made > 2
        assert shard.recoveries == 1
        assert client.kv("t").get("k").value == b"1"


def test_from_an_event_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with fasti.aio.connect(f"embedded:{tmp_path}") as client:
            await client.create_topic("t")
            sink = client.sink("t", "s")
            async with sink.stage(0, 0, 0) as stage:
                await stage.write(messages(["a", "b"]))
            other = sink.stage(0, 1, 0)
            await other.write(messages(["c"]))
            assert await sink.drop([(await other.close()).name]) == 1
            assert (await sink.publish(0, [stage.staged.name])).rows == 2
            assert await sink.last_batch() == 0
            assert [each.sink for each in await client.sinks()] == ["s"]
            emails = client.messages("t")
            assert (await emails.cancel(key="a", dry_run=True)).status == "ok"
            assert (await emails.cancel(key="a")).status == "ok"
            assert await sink.forget()
            assert await sink.describe() is None

    asyncio.run(run())


def test_a_transaction_has_no_dry_run(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t")
        client.producer("t").send(b"", key="a", delay="1d").result()
        with client.transaction() as tx:
            with pytest.raises(InvalidArgument):
                tx.cancel("t", key="a", dry_run=True)
            tx.move("t", key="a", delay="2d")
        assert client.messages("t").count()["scheduled"] == 1
