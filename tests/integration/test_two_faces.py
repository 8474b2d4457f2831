"""The synchronous and the asyncio SDK say the same: every public call, on both, answers compared.

A story is written once. It yields what a call gave; the synchronous face has answered by then, and on
the asyncio face the answer is awaited. Each face tells it to a broker of its own, embedded. At the end
every public method of every class must have been called on both faces.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.aio import sinks as aio_sinks
from fasti.aio import watch as aio_watch
from fasti.client import receipts, sinks, watch
from fasti.errors import FastiError

Answers = Generator[Any, Any, None]
Story = Callable[[Any, Path], Answers]

CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    **{
        name: (getattr(fasti, name), getattr(fasti.aio, name))
        for name in fasti.aio.__all__
        if name not in ("App", "PendingBatch", "connect")
    },
    "PendingBatch": (receipts.PendingBatch, fasti.aio.PendingBatch),
    "Sink": (sinks.Sink, aio_sinks.Sink),
    "StageWriter": (sinks.StageWriter, aio_sinks.StageWriter),
    "Watch": (watch.Watch, aio_watch.Watch),
}
# What one face alone has, or what other parts of the SDK call and no user.
INSIDE = {
    "Client": {"calls", "look_after", "detach", "loop", "synchronous"},
    "Consumer": {"take_now", "close_session", "session"},
    "Message": {"segment", "place", "same_as", "finished_elsewhere", "known_token", "token"},
    "Producer": {"cut", "outbox", "busy", "settle"},
    "Reader": {"begin", "more", "take_message", "take_table"},
    "Receipt": {"disown", "wait"},
    "Watch": {"more", "take", "take_batch", "position"},
    "Changes": {"position"},
}
# Beyond any count or id here: microseconds since 1970.
MOMENT = 10 * 365 * 86_400_000_000
SOON = datetime(2050, 1, 1, tzinfo=UTC)


@dataclass
class First:
    """As many items of something that is iterated over."""

    items: Any
    count: int = 1_000


@dataclass
class Refused:
    """A call that raises."""

    call: Callable[[], Any]


@dataclass
class Kind:
    """An answer that no two brokers give alike: only its type is compared."""

    answer: Any


# The stories


def topics(client: Any, _: Path) -> Answers:
    yield client.create_topic("emails", lease="20s", retry=fasti.Backoff("2s"))
    yield client.create_topic("emails", lease="20s", retry=fasti.Backoff("2s"))
    yield Refused(lambda: client.create_topic("emails", lease="40s"))
    yield Refused(lambda: client.create_topic("emails", leese="40s"))
    yield client.change_topic("emails", lease="40s")
    yield client.pause_topic("emails")
    yield client.topic("emails")
    yield client.resume_topic("emails")
    yield client.resume_topic("emails")
    yield Kind(client.consumers())
    yield client.release_consumer("nobody", "emails")
    yield client.references("emails")
    yield client.topics()
    document = yield client.definitions()
    document["topics"]["more"] = {"kind": "log"}
    yield client.define(document, dry_run=True)
    yield client.define(document)
    yield client.delete_topic("more")
    yield Refused(lambda: client.delete_topic("more"))


def the_broker(client: Any, folder: Path) -> Answers:
    yield client.health()
    text = yield client.metrics()
    assert "fasti_" in text
    yield Kind(client.clock_info())
    yield client.accept_clock()
    yield client.checkpoint("60s")
    yield Kind(client.feed())
    calls: list[tuple[int, int]] = []
    yield Kind(client.scrub(lambda *progress: calls.append(progress)))
    done = client.backup(folder / "backup", progress=lambda *progress: calls.append(progress))
    yield Kind(done)
    assert calls
    yield client.sinks()
    yield client.create_topic("staged", partitions=1)
    producer = client.producer("staged")
    yield producer.send_batch([b"a", b"b"], stage="one")
    yield client.publish("one")
    yield producer.send_batch([b"c"], stage="two")
    yield client.drop_stage("two")
    yield Refused(lambda: client.publish("three"))
    assert client.unread_failures == 0
    assert client.clock.now_us() > 0


def sends(client: Any, _: Path) -> Answers:
    yield client.create_topic("sends", partitions=1)
    producer = client.producer("sends")
    receipt = yield producer.send(b"a", key="a", headers={"x": "y"}, delay="1h")
    yield receipt.result(timeout="60s")
    yield receipt.done
    repeated = yield producer.send(b"a", key="a")
    yield repeated.result(timeout="60s")
    yield Refused(lambda: producer.send("text"))
    yield producer.send_batch([b"b", b"c"], key=["b", "c"], at=SOON)
    pending = yield producer.send_batch([b"d"], wait=False)
    yield pending.result(timeout="60s")
    yield pending.done
    yield producer.flush()
    yield (producer.failed, producer.unread_failures)
    yield producer.close()
    yield Refused(lambda: producer.send(b"e"))


def consumers(client: Any, _: Path) -> Answers:
    yield client.create_topic(
        "work", partitions=1, retry=fasti.Backoff("1ms", jitter=0), max_attempts=2
    )
    yield client.producer("work").send_batch([bytes([row]) for row in range(11)])
    consumer = client.consumer("work", name="worker", prefetch=20)
    messages = yield First(consumer, 7)
    yield [(each.id, each.payload, each.key, each.headers, each.attempts) for each in messages]
    first, second, third, fourth, fifth, sixth, seventh = messages
    yield first.ack(wait=True)
    yield Refused(first.ack)
    yield second.nack("broken", at=SOON, wait=True)
    yield third.reject("no address", wait=True)
    yield fourth.release("1h", wait=True)
    yield fifth.extend("2m", wait=True)
    yield Refused(lambda: fifth.reply(b"no request"))
    yield fifth.ack()
    yield Kind(client.consumers("work"))
    # An ack is no less on its way than a send: what changes messages waits for both.
    yield sixth.ack()
    yield client.messages("work").cancel(id=sixth.id)
    yield client.messages("work").release(seventh.id)
    taken = yield consumer.take(1)
    yield [each.payload for each in taken]
    yield taken[0].release("1h", wait=True)
    batch = (yield First(consumer.batches(2), 1))[0]
    assert len(batch.messages) == batch.table.num_rows
    everything = np.ones(batch.table.num_rows, bool)
    yield batch.nack(~everything, "none of them")
    yield batch.reject(~everything)
    yield batch.release(~everything)
    assert (yield batch.ack(wait=True)).all_ok
    yield consumer.flush()
    yield (consumer.failed, consumer.unread_failures, consumer.reconnections)
    yield consumer.stop()
    yield consumer.close()


def messages(client: Any, _: Path) -> Answers:
    yield client.create_topic("pending", max_attempts=1, partitions=1)
    keys = [f"key-{row}" for row in range(20)]
    producer = client.producer("pending", owner="billing")
    yield producer.send_batch([b"x"] * 20, key=keys, at=SOON)
    pending = client.messages("pending", owner="billing")
    yield (pending.topic, pending.owner)
    yield pending.move(key="key-0", delay="1h")
    yield pending.move(key=["key-1", "nobody"], at=SOON + timedelta(days=1))
    yield pending.move(id=2, at=SOON, dry_run=True)
    yield Refused(lambda: pending.move(key="key-0"))
    yield pending.cancel(key="key-2")
    yield pending.cancel(id=[4, 5])
    yield pending.update(key="key-5", payload=b"another", headers={"a": "b"})
    yield pending.update(key=["key-6"], payload=[b"another"])
    yield client.messages("pending").cancel(key="key-7")
    told: list[tuple[int, int]] = []
    yield pending.move_where(by="1h", key_prefix="key-1", progress=lambda *each: told.append(each))
    assert told[-1] == (11, 11)
    yield pending.cancel_where(key_prefix="key-19")
    yield Refused(pending.cancel_where)
    yield pending.get(key="key-5")
    yield pending.get(id=6, payload=False)
    yield pending.get(key=["key-5", "nobody"])
    yield pending.list(limit=3, columns=["id", "key"])
    stale = pending.stale()
    yield stale.topic
    yield stale.get(key="key-5")
    yield stale.get(key="nobody")
    yield stale.get(key=["key-5", "nobody"], payload=False)
    yield stale.list(limit=3, columns=["id", "key"])
    yield First(stale.scan(limit=3, columns=["id", "key"]))
    yield stale.count()
    yield stale.describe()
    yield First(pending.scan(key_prefix="key-1", payload=True))
    yield Refused(lambda: First(pending.scan(columns=["nothing_like_it"])))
    yield pending.count()
    yield pending.forecast("1d", start=SOON, end=SOON + timedelta(days=3))
    yield Refused(lambda: pending.forecast("1s"))
    yield pending.release([1])
    yield producer.send_batch([b"dead"] * 4)
    consumer = client.consumer("pending", prefetch=4)
    for message in (yield First(consumer, 4)):
        yield message.reject("no address", wait=True)
    yield consumer.close()
    dead = yield pending.dead()
    ids = dead["id"].to_pylist()
    yield dead.drop_columns(["died_us"])
    yield pending.dead_counts()
    yield pending.redrive(ids[0], at=SOON)
    yield pending.purge(ids[1:2])
    yield pending.redrive(reason="address", at=SOON, progress=lambda *each: told.append(each))
    yield pending.purge()


def transactions(client: Any, _: Path) -> Answers:
    yield client.create_topic("inbox", partitions=1)
    yield client.create_topic("state", kind="kv", partitions=1)
    yield client.producer("inbox").send_batch([b"1", b"2", b"3", b"4"])
    consumer = client.consumer("inbox", prefetch=4)
    first, second, third, fourth = yield First(consumer, 4)
    everything = client.transaction()
    everything.ack(first)
    everything.nack(second, "broken", at=SOON)
    everything.reject(third, "for good")
    everything.release(fourth, "1h")
    everything.send("inbox", b"later", key="later", at=SOON)
    everything.send_batch("inbox", [b"x", b"y"], key=["x", "y"], at=SOON)
    everything.put("state", "a", b"1", version=0)
    everything.put_many("state", {"b": b"2", "c": b"3"})
    yield everything.commit()
    yield Refused(everything.commit)
    changes = client.transaction()
    changes.move("inbox", key="later", delay="2h")
    changes.cancel("inbox", key="x")
    changes.update("inbox", key="y", payload=b"z")
    changes.delete("state", "a")
    changes.delete_many("state", ["b", "c"])
    yield changes.commit()
    aborted = client.transaction()
    aborted.cancel("inbox", key="nobody")
    yield Refused(aborted.commit)
    yield client.messages("inbox").count()
    yield consumer.close()


def key_values(client: Any, _: Path) -> Answers:
    yield client.create_topic("profiles", kind="kv")
    profiles = client.kv("profiles")
    position = yield Kind(profiles.position())
    yield profiles.put("user-7", b"one", version=0, headers={"a": "b"}, content_type="text/plain")
    yield profiles.put("user-7", b"two", version=0)
    yield profiles.put_many({"user-8": b"8", "user-9": b"9"}, ttl="1h")
    yield profiles.put("user-7", b"part", clustering="address")
    yield profiles.get("user-7")
    yield profiles.get("nobody")
    yield profiles.get_many(["user-7", "nobody"], values=False)
    yield profiles.range(prefix="user-", limit=2)
    yield Refused(lambda: profiles.range(key="a", prefix="b"))
    yield First(profiles.scan(key="user-7"))
    yield Refused(lambda: First(profiles.scan(key="a", prefix="b")))
    yield First(profiles.entries(prefix="user-8"))
    yield First(profiles)
    yield profiles.count()
    stale = profiles.stale()
    yield stale.topic
    yield stale.get("user-7")
    yield stale.get("nobody")
    yield stale.get_many(["user-7", "nobody"], values=False)
    yield stale.count()
    yield profiles.delete("user-8")
    yield profiles.delete_many(["user-9", "nobody"])
    changes = profiles.watch(position=position, prefix="user-")
    yield First(changes, 4)
    yield changes.close()
    batches = profiles.watch(position=position)
    yield First(batches.batches(), 1)
    yield batches.close()


def logs(client: Any, _: Path) -> Answers:
    yield client.create_topic("events", kind="log", partitions=2)
    yield client.producer("events").send_batch([b"a", b"b"], partition=0)
    yield client.producer("events").send_batch([b"c"], partition=1)
    log = client.log("events")
    yield log.describe()
    yield log.offset_at(SOON)
    yield log.offset_at(SOON, 1)
    rows = yield First(client.reader("events"))
    yield [(row.partition, row.offset, row.payload) for row in rows]
    reader = client.reader("events", start="earliest", partition=0, follow=True)
    assert len((yield First(reader, 2))) == 2
    yield reader.position
    yield reader.closed
    yield reader.close()
    yield reader.closed
    yield Refused(lambda: First(reader))
    tables = yield First(client.reader("events", partition=1).batches(10))
    yield [table.drop_columns(["created_us"]) for table in tables]
    yield log.truncate(before=1, partition=0)
    yield Refused(lambda: log.truncate(before="begin"))


def groups(client: Any, _: Path) -> Answers:
    yield client.create_topic("grouped", kind="log", max_attempts=1)
    yield client.producer("grouped").send_batch([b"a", b"b", b"c"])
    groups = client.groups("grouped")
    yield groups.create("billing", ordered=True)
    yield Refused(lambda: groups.create("billing"))
    consumer = client.consumer("grouped", group="billing", prefetch=3)
    for message in (yield First(consumer, 3)):
        yield message.reject("no address", wait=True)
    yield consumer.close()
    yield groups.list()
    yield groups.describe("billing")
    yield groups.lag("billing")
    dead = yield groups.dead("billing", payload=True)
    yield dead.select(["id", "reason", "attempts", "payload"])
    yield groups.dead_counts("billing")
    told: list[tuple[int, int]] = []
    yield groups.redrive("billing", 1)
    yield groups.purge("billing", [2])
    yield groups.redrive("billing", reason="address", progress=lambda *each: told.append(each))
    yield groups.purge("billing")
    assert told
    yield groups.reset("billing", "latest")
    yield groups.delete("billing")
    yield Refused(lambda: groups.describe("billing"))


def bindings(client: Any, _: Path) -> Answers:
    yield client.create_topic("orders", partitions=1)
    yield client.create_topic("audit", kind="log")
    orders = client.bindings("orders")
    yield orders.add("orders.>", "audit")
    yield orders.add("orders.>", "audit")
    yield orders.list()
    yield client.references("audit")
    yield orders.remove("orders.>", "audit")
    yield Refused(lambda: orders.remove("orders.>", "audit"))
    yield repr(orders)


def schedules(client: Any, _: Path) -> Answers:
    yield client.create_topic("reports", kind="cron")
    yield client.create_topic("mail", partitions=1)
    reports = client.schedules("reports")
    yield reports.put("daily", cron="0 9 * * *", timezone="Europe/Paris", target="mail", start=SOON)
    yield Refused(lambda: reports.put("daily", cron="nonsense", target="mail"))
    yield reports.put_many({"yearly": {"cron": "@yearly", "target": "mail", "start": SOON}})
    yield reports.get("daily")
    yield reports.list()
    yield reports.preview("daily", 3)
    yield reports.preview(cron="@daily", timezone="Asia/Tokyo", count=2, after=SOON)
    yield reports.pause("daily")
    yield reports.resume("daily")
    yield reports.run_now("daily")
    yield reports.delete("yearly")
    yield Refused(lambda: reports.delete("yearly"))


def sinks_and_stages(client: Any, _: Path) -> Answers:
    yield client.create_topic("imported", partitions=1)
    sink = client.sink("imported", "nightly")
    yield (sink.topic, sink.sink_id, sink.operation, sink.on_conflict)
    yield sink.describe()
    stage = sink.stage(7, 0, 0)
    rows = pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())})
    yield Refused(lambda: stage.staged)
    yield stage.write(rows)
    yield stage.close()
    yield (stage.name, stage.rows, stage.staged)
    yield sink.publish(7, [stage.staged.name])
    yield sink.publish(7, [stage.staged.name])
    yield sink.last_batch()
    dropped = sink.stage(8, 0, 0)
    yield dropped.write(rows)
    yield dropped.close()
    yield sink.drop([dropped.staged.name])
    yield client.sinks()
    aborted = sink.stage(8, 1, 0)
    yield aborted.write(rows)
    yield aborted.abort()
    yield sink.forget()
    yield Refused(lambda: sink.stage(-1, 0, 0))


def changes(client: Any, _: Path) -> Answers:
    yield client.create_topic("lives", partitions=1)
    yield client.producer("lives").send_batch([b"a", b"b"], key=["a", "b"], at=SOON)
    yield client.messages("lives").cancel(key="a")
    feed = yield client.changes(topic="lives", key="a")
    tables = yield First(feed)
    yield [table.select(["topic", "id", "key"]) for table in tables]
    yield feed.closed
    yield feed.close()
    yield feed.closed


def requests(client: Any, _: Path) -> Answers:
    yield client.create_topic("prices", partitions=1)
    yield Refused(lambda: client.call("prices", b"?", timeout="50ms"))
    yield Refused(lambda: client.call("nothing-like-it", b"?", timeout="20s"))
    yield Refused(lambda: client.call("prices", b"?", headers={"fasti-reply-to": "x"}))


def the_end(client: Any, _: Path) -> Answers:
    yield client.close()
    yield client.close()
    for refused in (client.topics, client.feed, client.transaction):
        yield Refused(refused)
    for refused in (client.kv, client.messages, client.groups, client.producer, client.reader):
        yield Refused(lambda refused=refused: refused("emails"))


STORIES: list[Story] = [
    topics,
    the_broker,
    sends,
    consumers,
    messages,
    transactions,
    key_values,
    logs,
    groups,
    bindings,
    schedules,
    sinks_and_stages,
    changes,
    requests,
    the_end,
]


# Telling them


def tell(story: Answers) -> Iterator[Any]:
    answer = None
    while True:
        try:
            given = story.send(answer)
        except StopIteration:
            return
        answer = _answer(given.answer if isinstance(given, Kind) else given)
        yield type(answer).__name__ if isinstance(given, Kind) else plain(answer)


def _answer(given: Any) -> Any:
    if isinstance(given, Refused):
        try:
            return _answer(given.call())
        except (FastiError, TypeError) as error:
            return _named(error)
    return list(islice(given.items, given.count)) if isinstance(given, First) else given


async def tell_in_loop(story: Answers) -> list[Any]:
    answers: list[Any] = []
    answer = None
    while True:
        try:
            given = story.send(answer)
        except StopIteration:
            return answers
        answer = await _awaited(given.answer if isinstance(given, Kind) else given)
        answers.append(type(answer).__name__ if isinstance(given, Kind) else plain(answer))


async def _awaited(given: Any) -> Any:
    if isinstance(given, Refused):
        try:
            return await _awaited(given.call())
        except (FastiError, TypeError) as error:
            return _named(error)
    if isinstance(given, First):
        return await _first(given.items, given.count)
    return await given if isinstance(given, Awaitable) else given


async def _first(items: AsyncIterator[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async for item in items:
        found.append(item)
        if len(found) == count:
            break
    return found


def _named(error: Exception) -> str:
    return error.code if isinstance(error, FastiError) else type(error).__name__


def plain(value: Any) -> Any:
    """What two brokers should say alike: without moments, and without what a broker calls itself."""
    if isinstance(value, bool | bytes | None):
        return value
    if isinstance(value, int | np.integer):
        return "moment" if value > MOMENT else int(value)
    if isinstance(value, str):
        return "name" if re.search("[0-9a-f]{12}|/", value) else value
    if isinstance(value, datetime | timedelta | float):
        return "moment"
    if isinstance(value, pa.Table | pa.RecordBatch):
        return plain(value.to_pydict())
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name != "position"]
        shown = {name: plain(getattr(value, name)) for name in names}
        return {"kind": type(value).__name__, **shown}
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items() if name != "position"}
    if isinstance(value, Iterable) and not isinstance(value, Iterator | AsyncIterator):
        return [plain(each) for each in value]
    return type(value).__name__


def public(kind: type[Any], name: str) -> dict[str, Any]:
    """A class's methods and properties that users may use."""
    return {
        member: inspect.getattr_static(kind, member)
        for member in dir(kind)
        if not member.startswith("_") and member not in INSIDE.get(name, ())
    }


@pytest.fixture(scope="module")
def called() -> Iterator[dict[type[Any], set[str]]]:
    """Which methods were called, of each class."""
    seen: dict[type[Any], set[str]] = {kind: set() for pair in CLASSES.values() for kind in pair}

    def recorder(kind: type[Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def record(*given: Any, **named: Any) -> Any:
            if type(given[0]) is kind:
                seen[kind].add(name)
            return function(*given, **named)

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name, pair in CLASSES.items():
            for kind in pair:
                for member, function in public(kind, name).items():
                    if inspect.isfunction(function):
                        patch.setattr(kind, member, recorder(kind, member, function))
        yield seen


def test_both_faces_answer_alike(called: dict[type[Any], set[str]], tmp_path: Path) -> None:
    sync_folder, loop_folder = tmp_path / "sync", tmp_path / "loop"
    with fasti.connect(f"embedded:{sync_folder}") as client:
        answers = {story.__name__: list(tell(story(client, sync_folder))) for story in STORIES}

    async def whole() -> dict[str, list[Any]]:
        async with fasti.aio.connect(f"embedded:{loop_folder}") as client:
            return {
                story.__name__: await tell_in_loop(story(client, loop_folder)) for story in STORIES
            }

    in_loop = asyncio.run(whole())
    unlike = [name for name, answered in answers.items() if in_loop[name] != answered]
    for name in unlike:
        assert in_loop[name] == answers[name], f"of {unlike}: {name}"
    if client.transport.shard_count > 1:
        # Some of what `fasti.Client` makes is of another class then.
        return
    for name, pair in CLASSES.items():
        for kind in pair:
            methods = {m for m, f in public(kind, name).items() if inspect.isfunction(f)}
            assert methods <= called[kind], (
                f"{kind.__module__}.{name} has calls that no story makes"
            )


@pytest.mark.parametrize("name", CLASSES)
def test_both_faces_have_the_same_names(name: str) -> None:
    synchronous, in_loop = CLASSES[name]
    assert set(public(synchronous, name)) == set(public(in_loop, name))


@pytest.mark.parametrize("name", CLASSES)
def test_both_faces_take_the_same_arguments(name: str) -> None:
    synchronous, in_loop = CLASSES[name]
    for member, function in public(synchronous, name).items():
        if inspect.isfunction(function):
            other = inspect.signature(public(in_loop, name)[member])
            assert list(inspect.signature(function).parameters) == list(other.parameters), member
