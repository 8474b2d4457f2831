"""Messages that nobody began in time: dead, and never delivered after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.client.durations import moment_us
from fasti.errors import InvalidArgument
from fasti.testing.virtual import START, VirtualBroker

START_US = moment_us(START)
MINUTE_US = 60_000_000


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    made = broker.client()
    made.create_topic("jobs", lease="30s", retry=fasti.Backoff("1s", jitter=0))
    return made


def await_leases(broker: VirtualBroker, client: fasti.Client, count: int) -> None:
    """Until a consumer has so many in its hands, or in its prefetch: its credit follows its name."""
    while client.messages("jobs").count()["leased"] < count:
        broker.advance("1ms")


def seen(client: fasti.Client, id: int) -> tuple[str, str | None, int | None]:
    found = client.messages("jobs").get(id=id)
    return found["state"], found["reason"], found["expires_us"]


def test_dead_at_its_moment(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a", delay="1m", expires="10m").result(60).id
    end_us = START_US + 11 * MINUTE_US
    assert seen(client, id) == ("scheduled", None, end_us)
    broker.advance(timedelta(minutes=11) - timedelta(microseconds=1))
    assert seen(client, id) == ("ready", None, end_us)
    broker.advance(timedelta(microseconds=1))
    assert seen(client, id) == ("dead", "expired", None)
    dead = client.messages("jobs").dead()
    assert (dead["reason"][0].as_py(), dead["died_us"][0].as_py()) == ("expired", end_us)
    with client.consumer("jobs") as consumer:
        assert consumer.take(timeout=0.05) == []
    broker.settle()


def test_a_moment(broker: VirtualBroker, client: fasti.Client) -> None:
    end = START + timedelta(hours=1)
    id = client.producer("jobs").send(b"a", expires=end).result(60).id
    with client.consumer("jobs", prefetch=1) as consumer:
        message = next(consumer)
        assert message.expires == end
        # What was begun in time may be finished at any time.
        broker.advance("2h")
        assert message.ack(wait=True).status == "ok"
    assert client.messages("jobs").get(id=id) is None


@pytest.mark.parametrize("how", ["nack", "release", "lease", "operator"])
def test_it_does_not_come_back(broker: VirtualBroker, client: fasti.Client, how: str) -> None:
    id = client.producer("jobs").send(b"a", expires="1h").result(60).id
    with client.consumer("jobs", prefetch=1) as consumer:
        message = next(consumer)
        message.nack("first", wait=True)
        broker.advance("2s")
        message = next(consumer)
        broker.advance("1h")
        if how == "nack":
            assert message.nack("second", wait=True).status == "ok"
        elif how == "release":
            assert message.release(wait=True).status == "ok"
        elif how == "operator":
            assert client.messages("jobs").release(id).status == "ok"
        else:
            broker.expire_leases()
        assert seen(client, id) == ("dead", "expired", None)
        assert consumer.take(timeout=0.05) == []


def test_what_a_consumer_holds_is_not_handed_over(
    broker: VirtualBroker, client: fasti.Client
) -> None:
    client.producer("jobs").send_batch([b"a", b"b", b"c"], expires=["1h", "1m", None])
    with client.consumer("jobs", prefetch=3) as consumer:
        first = next(consumer)
        await_leases(broker, client, 3)
        broker.advance("2m")
        second = next(consumer)
        assert (first.payload, second.payload) == (b"a", b"c")
        first.ack(), second.ack()
        consumer.flush()
    counts = client.messages("jobs").count()
    assert (counts["done"], counts["dead"], counts["leased"]) == (2, 1, 0)


def test_batches_pass_over_them(broker: VirtualBroker, client: fasti.Client) -> None:
    producer = client.producer("jobs")
    with client.consumer("jobs", prefetch=10, timeout="5s") as consumer:
        batches = consumer.batches(10, wait=0)
        producer.send_batch([b"first"])
        next(batches).ack()
        producer.send_batch([b"a", b"b", b"c", b"d"], expires=["1m", None, "1m", None])
        await_leases(broker, client, 4)
        broker.advance("2m")
        got = [*next(batches).table["payload"].to_pylist()]
        got += next(batches).table["payload"].to_pylist() if len(got) < 2 else []
        assert got == [b"b", b"d"]


def test_move_keeps_the_moment_unless_told(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a", delay="1m", expires="9m").result(60).id
    jobs = client.messages("jobs")
    assert jobs.move(id=id, delay="5m").status == "ok"
    assert seen(client, id)[2] == START_US + 10 * MINUTE_US
    assert jobs.move(id=id, delay="20m", expires="10m").status == "ok"
    assert seen(client, id)[2] == START_US + 30 * MINUTE_US
    broker.advance("15m")
    assert seen(client, id)[0] == "scheduled"
    broker.advance("15m")
    assert seen(client, id)[0] == "dead"


def test_what_is_sent_too_late_is_dead_at_once(broker: VirtualBroker, client: fasti.Client) -> None:
    with client.consumer("jobs", prefetch=5) as consumer:
        past = START - timedelta(hours=1)
        id = client.producer("jobs").send(b"a", expires=past).result(60).id
        assert consumer.take(timeout=0.05) == []
        assert seen(client, id) == ("dead", "expired", None)


def test_a_redriven_one_has_no_end(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a", expires="1m").result(60).id
    broker.advance("1h")
    assert client.messages("jobs").redrive(id).status == "ok"
    broker.advance("30d")
    assert seen(client, id) == ("ready", "expired", None)


def test_replacing_gives_it_another(broker: VirtualBroker, client: fasti.Client) -> None:
    producer = client.producer("jobs")
    id = producer.send(b"a", key="k", expires="1m").result(60).id
    assert producer.send(b"b", key="k", on_conflict="replace").result(60).id == id
    broker.advance("1h")
    assert seen(client, id) == ("ready", None, None)


def test_priorities_and_transactions(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("ranked", kind="priority")
    with client.transaction() as transaction:
        transaction.send("ranked", b"a", priority=3, expires="1m")
        transaction.send("jobs", b"b", expires="1m")
    assert client.messages("ranked").count()["ready"] == 1
    broker.advance("1m")
    assert client.messages("ranked").count()["dead"] == 1
    assert client.messages("jobs").count()["dead"] == 1


def test_copies_of_a_bound_topic_expire_too(broker: VirtualBroker, client: fasti.Client) -> None:
    for name in ("events", "mail"):
        client.create_topic(name)
    client.create_topic("audit", kind="log")
    client.bindings("events").add("orders.>", "mail")
    client.bindings("events").add("orders.>", "audit")
    client.producer("events").send(b"a", subject="orders.new", expires="1m").result(60)
    broker.advance("1m")
    assert [client.messages(name).count()["dead"] for name in ("events", "mail")] == [1, 1]
    assert len(list(client.reader("audit", follow=False))) == 1


def test_staged_ones_expire_when_they_are_published(
    broker: VirtualBroker, client: fasti.Client
) -> None:
    producer = client.producer("jobs")
    producer.send_batch([b"a", b"b"], stage="s", expires=["1m", "1h"])
    broker.advance("2m")
    assert client.messages("jobs").count()["dead"] == 0
    client.publish("s")
    assert client.messages("jobs").count()["ready"] <= 1
    broker.advance("1h")
    assert client.messages("jobs").count()["dead"] == 2


def test_what_a_schedule_sends_expires_too(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("nightly", kind="cron")
    nightly = client.schedules("nightly")
    nightly.put("often", every="1h", target="jobs", payload=b"x", expires="10m")
    assert nightly.get("often").arguments()["expires"] == timedelta(minutes=10)
    broker.advance("65m")
    assert client.messages("jobs").count()["ready"] == 1
    broker.advance("10m")
    counts = client.messages("jobs").count()
    assert (counts["ready"], counts["dead"]) == (0, 1)
    nightly.put("often", every="1h", target="jobs", payload=b"x")
    broker.advance("2h")
    assert client.messages("jobs").count()["ready"] == 2
    with pytest.raises(InvalidArgument):
        nightly.put("never", every="1h", target="jobs", expires="soon")


def test_tables_have_columns_for_it(broker: VirtualBroker, client: fasti.Client) -> None:
    moments = pa.array([START + timedelta(minutes=5), None], pa.timestamp("us", "UTC"))
    table = pa.table({"payload": [b"a", b"b"], "expires": moments})
    assert client.producer("jobs").send_batch(table).all_ok
    lengths = pa.array([timedelta(minutes=6)], pa.duration("us"))
    assert (
        client.producer("jobs").send_batch(pa.table({"payload": [b"c"], "expires": lengths})).all_ok
    )
    found = client.messages("jobs").list()["expires_us"].to_pylist()
    assert found == [START_US + 5 * MINUTE_US, None, START_US + 6 * MINUTE_US]


@pytest.mark.parametrize("kind", ["log", "kv", "cron"])
def test_other_kinds_say_so(client: fasti.Client, kind: str) -> None:
    client.create_topic("other", kind=kind)
    with pytest.raises(InvalidArgument):
        client.producer("other").send(b"a", expires="1h").result(60)


def test_bad_moments(client: fasti.Client) -> None:
    producer = client.producer("jobs")
    for bad in ("soon", 0, "0s", datetime(2030, 1, 1)):  # noqa: DTZ001
        with pytest.raises(InvalidArgument):
            producer.send(b"a", expires=bad)


def test_an_app_never_handles_it(broker: VirtualBroker) -> None:
    app = fasti.App(broker.client())
    ran: list[int] = []

    @app.on("numbers")
    def note(value: int) -> None:
        ran.append(value)

    note.later(1, expires="1m")
    note.later(2)
    note.later(3, delay="2h", expires="1h")
    broker.flush()
    broker.advance("1h")
    broker.run_until_idle(app, until="2h")
    assert ran == [2, 3]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_forgets_no_moment(tmp_path: Path, checkpoint: bool) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("jobs")
        near = datetime.now(UTC) + timedelta(hours=1)
        producer = client.producer("jobs")
        ids = [
            producer.send(b"a", delay="30m", expires=near).result(60).id,
            producer.send(b"b", delay="3d", expires="1ms").result(60).id,
            producer.send(b"c").result(60).id,
        ]
        before = client.messages("jobs").get(id=ids)["expires_us"].to_pylist()
        client.create_topic("nightly", kind="cron")
        client.schedules("nightly").put("n", every="1h", target="jobs", expires="10m")
        if checkpoint:
            client.checkpoint()
    with fasti.connect(f"embedded:{tmp_path}") as client:
        assert client.messages("jobs").get(id=ids)["expires_us"].to_pylist() == before
        ran = client.schedules("nightly").run_now("n").id
        assert client.messages("jobs").get(id=ran)["expires_us"] is not None
        # A time that has come is noticed by itself.
        gone = client.producer("jobs").send(b"d", delay="50ms", expires="50ms").result(60).id
        feed = client.changes(start=client.feed().first, follow=True, topic="jobs")
        for table in feed:
            lapsed = table.filter(pa.compute.equal(table["op"], "lapsed"))
            if lapsed.num_rows:
                assert lapsed["id"].to_pylist() == [gone]
                break
        feed.close()


def test_tasks_send_it_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with fasti.aio.connect(f"embedded:{tmp_path}") as client:
            await client.create_topic("jobs", lookahead=0)
            end = datetime.now(UTC) + timedelta(days=1)
            await (await client.producer("jobs").send(b"a", expires=end))
            async with client.consumer("jobs") as consumer:
                assert (await anext(consumer)).expires == end

    asyncio.run(run())
