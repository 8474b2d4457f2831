"""Every call of the SDK, on a broker process and on one inside this process."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import (
    Closed,
    Fenced,
    InvalidArgument,
    NotFound,
    RowsFailed,
    TopicMismatch,
    TransactionAborted,
    Unavailable,
)

CONNECTED = {"owner": "billing"}


@pytest.fixture
def topic(client: fasti.Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.split("[")[0]
    client.create_topic(name, lookahead="50ms")
    return str(name)


def test_topics(client: fasti.Client) -> None:
    made = client.create_topic(
        "shop", lease="5s", max_attempts=3, retry=fasti.Backoff("1s", factor=3, limit="1m")
    )
    assert (made.settings.lease_us, made.settings.retry.limit_us) == (5_000_000, 60_000_000)
    again = {"lease": "5s", "max_attempts": 3, "retry": made.settings.retry}
    assert client.create_topic("shop", **again).settings == made.settings
    with pytest.raises(TopicMismatch) as differs:
        client.create_topic("shop", **{**again, "lease": "6s"})
    assert differs.value.differing == ["lease_us"]
    assert client.change_topic("shop", hold="1h").settings.hold_us == 3_600_000_000
    assert client.topic("shop").settings.max_attempts == 3
    assert "shop" in [topic.name for topic in client.topics()]
    client.delete_topic("shop")
    with pytest.raises(NotFound):
        client.topic("shop")
    with pytest.raises(InvalidArgument, match="leese"):
        client.create_topic("shop", leese="5s")


def test_a_message_is_put_changed_and_got(client: fasti.Client, topic: str) -> None:
    producer = client.producer(topic)
    receipt = producer.send(
        b"hello", delay="1h", key="user-7", headers={"lang": "en"}, content_type="text/plain"
    )
    sent = receipt.result(timeout=60)
    assert (sent.status, sent.version) == ("ok", 1)
    emails = client.messages(topic)
    moved = emails.move(key="user-7", delay="2h", version=1)
    assert (moved.status, moved.id) == ("ok", sent.id)
    assert emails.move(key="user-7", delay="2h", version=1).status == "conflict"
    assert emails.update(id=sent.id, payload=b"new", headers={"lang": "fr"}).ok
    found = emails.get(key="user-7")
    assert (found["payload"], found["headers"], found["owner"]) == (
        b"new",
        {"lang": "fr"},
        "billing",
    )
    assert emails.get(id=sent.id + 1) is None
    stranger = client.messages(topic, owner="somebody")
    assert stranger.cancel(key="user-7").status == "not_owner"
    assert emails.move(key="user-7", at=datetime.now(UTC) - timedelta(seconds=1)).ok
    message = next(client.consumer(topic, timeout="60s"))
    assert (message.payload, message.key, message.headers) == (b"new", "user-7", {"lang": "fr"})
    held = emails.cancel(id=sent.id)
    assert held.status == "leased"
    assert held.by
    assert held.at > datetime.now(UTC)
    assert message.ack(wait=True, timeout=60) is not None
    ended = emails.cancel(id=sent.id)
    assert ended.status == "done"
    assert abs(ended.at - datetime.now(UTC)) < timedelta(minutes=1)
    producer.close()


def test_many_at_once(client: fasti.Client) -> None:
    # The order is one over all rows.
    topic = "many-at-once"
    client.create_topic(topic, partitions=1, lookahead="50ms")
    with client.producer(topic) as producer:
        now_us = client.clock.now_us()
        table = pa.table(
            {
                "payload": [b"%d" % n for n in range(30_000)],
                "due_us": pa.array([now_us + n for n in range(30_000)]),
            }
        )
        outcomes = producer.send_batch(table)
        assert outcomes.all_ok
        assert len(set(outcomes.ids.tolist())) == 30_000
        keyed = producer.send_batch([b"a", b"b"], key=["k", "k"], delay="1h")
        assert keyed.status == ["ok", "conflict"]
        assert keyed.failed.tolist() == [1]
        atomic = producer.send_batch([b"a", b"b"], key=["new", "k"], atomic=True)
        assert atomic.status == ["aborted", "conflict"]
    emails = client.messages(topic)
    assert emails.cancel(key=["k", "none"]).status == ["ok", "not_found"]
    assert emails.count()["cancelled"] == 1
    seen = []
    with client.consumer(topic, timeout="60s") as consumer:
        for batch in consumer.batches(7_000, wait="1s"):
            seen += batch.table.column("payload").to_pylist()
            batch.ack()
            if len(seen) == 30_000:
                break
    assert seen == table.column("payload").to_pylist()
    assert emails.count()["done"] == 30_000


def test_listing_counting_and_forecasting(client: fasti.Client, topic: str) -> None:
    producer = client.producer(topic)
    now_us = client.clock.now_us()
    hour_us = 3_600_000_000
    now_us -= now_us % 60_000_000
    due = [now_us + hour_us, now_us + 2 * hour_us, now_us + 2 * hour_us + 5]
    assert producer.send_batch([b"a", b"b", b"c"], due=due).all_ok
    emails = client.messages(topic)
    table = emails.list(due_from=now_us + hour_us + 1, state="scheduled")
    assert table.num_rows == 2
    assert "payload" not in table.column_names
    assert emails.list(payload=True, limit=1).column("payload").to_pylist() == [b"a"]
    assert sum(batch.num_rows for batch in emails.scan()) == 3
    assert emails.list(owner="somebody").num_rows == 0
    assert emails.count()["scheduled"] == 3
    forecast = emails.forecast("1h", start=now_us)
    assert forecast.column("count").to_pylist() == [1, 2]
    for odd, field in (({"start": 7}, "start"), ({"end": 1}, "start"), ({"bucket": 7}, "bucket")):
        with pytest.raises(InvalidArgument) as refused:
            emails.forecast(**odd)
        assert refused.value.field == field
    producer.close()


def test_the_dead_are_listed_redriven_and_purged(client: fasti.Client, topic: str) -> None:
    producer = client.producer(topic)
    assert producer.send_batch([b"a", b"b", b"c"]).all_ok
    with client.consumer(topic, timeout="60s") as consumer:
        for number, message in enumerate(consumer, start=1):
            message.reject(f"why {number}")
            if number == 3:
                break
    emails = client.messages(topic)
    dead = emails.dead()
    assert dead.column("reason").to_pylist() == ["why 1", "why 2", "why 3"]
    ids = dead.column("id").to_pylist()
    assert emails.redrive(ids[0], delay="1h").ok
    assert emails.redrive([ids[1]], delay="1h").all_ok
    assert emails.purge(ids[0]).status == "conflict"
    assert emails.purge().all_ok
    assert emails.dead().num_rows == 0
    assert emails.count()["scheduled"] == 2
    producer.close()


def test_transactions_happen_whole_or_not_at_all(client: fasti.Client) -> None:
    topic = "transactions"
    client.create_topic(topic, partitions=1)
    producer = client.producer(topic)
    producer.send(b"work")
    producer.send(b"other", key="other", delay="1h")
    consumer = client.consumer(topic, prefetch=1)
    message = next(consumer)
    tx = client.transaction()
    tx.ack(message)
    tx.send(topic, b"again", key="other")
    with pytest.raises(TransactionAborted) as aborted:
        tx.commit()
    assert [failure["status"] for failure in aborted.value.failures] == ["conflict"]
    assert [each.status for each in tx.outcomes] == [["aborted"], ["conflict"]]
    assert not message.finished

    def fail_inside() -> None:
        with client.transaction() as begun:
            begun.ack(message)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not message.finished
    assert client.messages(topic).count()["leased"] == 1
    with client.transaction() as tx:
        tx.ack(message)
        tx.cancel(topic, key="other")
        tx.send(topic, b"result", headers={"a": "b"})
    assert [each.status for each in tx.outcomes] == [["ok"], ["ok"], ["ok"]]
    assert message.finished
    # Its place is free: with a prefetch of one, the next could not come otherwise.
    result = next(consumer)
    assert (result.payload, result.headers) == (b"result", {"a": "b"})
    result.ack()
    consumer.close()
    counts = client.messages(topic).count()
    assert (counts["done"], counts["cancelled"], counts["leased"]) == (2, 1, 0)
    producer.close()


def test_a_cancel_does_not_overtake_the_send_that_it_means(
    client: fasti.Client, topic: str
) -> None:
    producer = client.producer(topic)
    emails = client.messages(topic)
    for number in range(50):
        producer.send(b"x", key=f"k{number}", delay="1h")
        assert emails.cancel(key=f"k{number}").status == "ok"
    producer.close()


def test_failures_nobody_looked_at(client: fasti.Client, topic: str) -> None:
    producer = client.producer(topic)
    producer.send(b"x", key="k", delay="1h")
    producer.send(b"y", key="k", delay="1h")
    with pytest.raises(RowsFailed) as told:
        producer.flush(timeout=60)
    assert [failure["status"] for failure in told.value.failures] == ["conflict"]
    assert producer.failed == 1
    producer.close()


def test_nacks_releases_and_attempts(client: fasti.Client) -> None:
    client.create_topic("nacks", retry=fasti.Backoff("1ms", factor=1), max_attempts=3)
    client.producer("nacks").send(b"x").result(60)
    attempts = []
    with client.consumer("nacks", timeout="60s") as consumer:
        for message in consumer:
            attempts.append(message.attempts)
            if len(attempts) == 1:
                message.release()
            else:
                message.nack("broken")
            if message.attempts == 3:
                break
    assert attempts == [1, 1, 2, 3]
    assert client.messages("nacks").dead().column("reason").to_pylist() == ["broken"]


def test_a_second_session_of_a_name_fences_the_first(client: fasti.Client, topic: str) -> None:
    first = client.consumer(topic, name="worker-1", prefetch=1)
    client.producer(topic).send_batch([b"a", b"b"])
    message = next(first)
    second = client.consumer(topic, name="worker-1", timeout="60s")
    again = next(second)
    assert (again.id, again.attempts) == (message.id, message.attempts)
    with pytest.raises(Fenced):
        next(first)
    # Of several shards the message's own may hear of it a moment later, in the middle of the ack.
    with suppress(Fenced):
        assert message.ack(wait=True, timeout=60).status == "stale_lease"  # type: ignore[union-attr]
    assert again.ack(wait=True, timeout=60).ok  # type: ignore[union-attr]
    second.close()
    first.close()


def test_what_is_not_there(client: fasti.Client) -> None:
    with pytest.raises(NotFound):
        client.producer("nowhere").send(b"x").result(60)
    with pytest.raises(NotFound):
        next(client.consumer("nowhere"))
    with pytest.raises(NotFound):
        client.messages("nowhere").count()
    with pytest.raises(InvalidArgument):
        client.messages("nowhere").cancel()


def test_a_batch_larger_than_the_limits(client: fasti.Client, topic: str) -> None:
    with client.producer(topic) as producer:
        outcomes = producer.send_batch([b"x" * (1 << 20)] * 70, delay="1h")
        assert outcomes.all_ok
        with pytest.raises(InvalidArgument):
            producer.send_batch([b"x" * (1 << 20)] * 70, atomic=True)
        with pytest.raises(InvalidArgument):
            producer.send_batch([b"x" * (1 << 21)])
        assert producer.send(b"still works").result(60).ok


def test_the_broker_tells_of_itself(client: fasti.Client) -> None:
    assert client.health() == {"ready": True, "state": "serving"}
    assert "fasti_" in client.metrics()
    client.checkpoint()
    assert client.server
    assert client.limits.payload_bytes_max == 1 << 20


def test_closing_gives_back_what_was_not_started(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("given-back", lookahead="1m")
        producer = client.producer("given-back")
        # Near enough to be here already, and not due before the end of this test.
        due = client.clock.now_us() + 55_000_000
        producer.send_batch([b"now", b"later", b"latest"], due=[1, due, due + 1])
        message = next(client.consumer("given-back", name="short"))
    with fasti.connect(broker.address) as client:
        counts = client.messages("given-back").count()
        assert (counts["scheduled"], counts["leased"]) == (2, 1)
        table = client.messages("given-back").list(state="scheduled")
        assert table.column("due_us").to_pylist() == [due, due + 1]
        assert table.column("attempts").to_pylist() == [0, 0]
    assert not message.finished


def test_nobody_at_the_address() -> None:
    with pytest.raises(Unavailable):
        fasti.connect("fasti://127.0.0.1:1", timeout="5s")
    with pytest.raises(InvalidArgument):
        fasti.connect("fasti://127.0.0.1:1", speed=5)


def test_the_first_address_that_answers_is_used(broker: BrokerProcess) -> None:
    address = f"fasti://127.0.0.1:1,{broker.host}:{broker.port}"
    with fasti.connect(address) as client:
        client.create_topic("second")
        assert client.producer("second").send(b"x").result(60).ok
    with pytest.raises(Closed):
        client.topics()


def test_a_program_that_sends_once_and_ends_has_sent_it(broker: BrokerProcess) -> None:
    """Its thread sends while the interpreter is ending, when nothing can be imported any more."""
    program = (
        "import fasti\n"
        f"client = fasti.connect({broker.address!r})\n"
        "client.create_topic('once')\n"
        "client.producer('once').send(b'the only one', delay='1h')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=150, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    with fasti.connect(broker.address) as client:
        assert client.messages("once").count()["scheduled"] == 1


def test_a_program_that_ends_without_closing_has_sent_everything(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    program = (
        "import fasti\n"
        f"client = fasti.connect({broker.address!r})\n"
        "client.create_topic('left')\n"
        "producer = client.producer('left')\n"
        "for n in range(2000): producer.send(b'%d' % n)\n"
        "consumer = client.consumer('left', name='gone')\n"
        "next(consumer).ack()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=150, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    with fasti.connect(broker.address) as client:
        counts = client.messages("left").count()
        assert (counts["ready"], counts["done"], counts["leased"]) == (1999, 1, 0)
