"""Requests and their answers: over a broker process, embedded, from threads, tasks and apps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.calls import TOO_LATE
from fasti.errors import (
    Closed,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    RowsFailed,
    TimedOut,
)
from fasti.testing import VirtualBroker
from tests.integration.serve_rig import SEGMENTS


@contextmanager
def replier(client: fasti.Client, topic: str, workers: int = 1, **consumer: Any) -> Iterator[None]:
    """Somebody who answers every request by its payload twice."""
    consumers = [client.consumer(topic, **consumer) for _ in range(workers)]

    def work(mine: fasti.Consumer) -> None:
        for message in mine:
            outcome = message.reply(message.payload * 2, headers={"by": "replier"})
            assert outcome.status in ("ok", "dead"), outcome

    threads = [threading.Thread(target=work, args=(each,)) for each in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in consumers:
            each.stop()
        for thread in threads:
            thread.join()


def inboxes(client: fasti.Client) -> list[str]:
    return [topic.name for topic in client.topics() if topic.name.startswith("_inbox.")]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=SEGMENTS) as started:
        yield started


@pytest.fixture(params=["process", "embedded", "virtual"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fasti.Client]:
    if request.param == "process":
        with fasti.connect(request.getfixturevalue("process").address) as made:
            yield made
            for topic in made.topics():
                made.delete_topic(topic.name)
    elif request.param == "embedded":
        with fasti.connect(f"embedded:{tmp_path}") as made:
            yield made
    else:
        with VirtualBroker() as broker:
            yield broker.client()


def test_a_call_is_answered(client: fasti.Client) -> None:
    client.create_topic("prices")
    with replier(client, "prices"):
        answer = client.call("prices", b"ab", headers={"currency": "EUR"}, timeout="60s")
        assert (answer.payload, bytes(answer)) == (b"abab", b"abab")
        assert answer.headers == {"by": "replier"}
        assert client.call("prices", b"", timeout="60s").payload == b""
    # The request is acked with its answer, and the answer is read.
    counts = client.messages("prices").count()
    assert (counts["done"], counts["leased"], counts["ready"]) == (2, 0, 0)
    (inbox,) = inboxes(client)
    assert client.topic(inbox).counts["dead"] == 0


def test_a_request_names_where_its_answer_goes(client: fasti.Client) -> None:
    client.create_topic("prices")
    seen: list[fasti.Message] = []

    def answer() -> None:
        message = next(iter(client.consumer("prices")))
        seen.append(message)
        message.reply(b"42", content_type="text/plain")

    thread = threading.Thread(target=answer)
    thread.start()
    found = client.call("prices", b"?", content_type="text/x", key="a", timeout="60s")
    thread.join()
    assert found.content_type == "text/plain"
    (message,) = seen
    assert message.reply_to == message.headers["reply_to"] == inboxes(client)[0]
    assert message.headers["correlation_id"]
    assert int(message.headers["deadline_us"]) > 0
    assert (message.key, message.content_type, message.finished) == ("a", "text/x", True)
    with pytest.raises(IllegalTransition):
        message.reply(b"again")


def test_many_callers_share_one_inbox(client: fasti.Client) -> None:
    client.create_topic("prices")
    callers = 200
    answers: dict[int, bytes] = {}

    def call(number: int) -> None:
        answers[number] = client.call("prices", b"%d." % number, timeout="150s").payload

    with replier(client, "prices", workers=8, prefetch=256):
        threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {number: b"%d.%d." % (number, number) for number in range(callers)}
    assert len(inboxes(client)) == 1


def test_nobody_answers(client: fasti.Client) -> None:
    client.create_topic("prices")
    with pytest.raises(NotFound):
        client.call("nowhere", b"?")
    with pytest.raises(InvalidArgument, match="must be positive"):
        client.call("prices", b"?", timeout=0)
    with pytest.raises(InvalidArgument, match="reply_to"):
        client.call("prices", b"?", headers={"reply_to": "me"})
    client.producer("prices").send(b"", key="taken", delay="1h").result()
    with pytest.raises(RowsFailed, match="conflict"):
        client.call("prices", b"?", key="taken")


def test_replies_are_for_requests(client: fasti.Client) -> None:
    client.create_topic("prices")
    producer = client.producer("prices")
    producer.send(b"no request").result()
    producer.send(b"odd", headers={"reply_to": "t", "deadline_us": "soon"}).result()
    consumer = client.consumer("prices", prefetch=2)
    first, second = islice(consumer, 2)
    for message, field in ((first, "reply_to"), (second, "deadline_us")):
        with pytest.raises(InvalidArgument, match=field):
            message.reply(b"")
        assert not message.finished
    first.ack()
    producer.send(b"", headers={"reply_to": "t"}).result()
    message = next(iter(consumer))
    with pytest.raises(InvalidArgument, match="correlation_id"):
        message.reply(b"", headers={"correlation_id": "mine"})


def test_an_answer_may_go_anywhere_and_leave_the_request_alone(client: fasti.Client) -> None:
    client.create_topic("prices")
    client.create_topic("answers")
    client.producer("prices").send(b"?", headers={"reply_to": "answers"}).result()
    message = next(iter(client.consumer("prices")))
    with pytest.raises(InvalidArgument, match="payload"):
        message.reply(b"x" * (client.limits.payload_bytes_max + 1))
    assert message.reply(b"half", ack=False).ok
    assert not message.finished
    assert message.reply(b"whole").ok
    found = [m.payload for m in islice(client.consumer("answers"), 2)]
    assert found == [b"half", b"whole"]


def test_a_reply_under_a_lease_that_is_over_is_refused() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("prices")
        client.create_topic("answers")
        client.producer("prices").send(b"?", headers={"reply_to": "answers"}).result()
        late = next(iter(client.consumer("prices", prefetch=1)))
        broker.expire_leases()
        message = next(iter(client.consumer("prices", prefetch=1)))
        assert late.reply(b"late").status == "stale_lease"
        assert not late.finished
        assert message.reply(b"in time").ok
        assert client.messages("answers").count()["ready"] == 1
        assert next(iter(client.consumer("answers"))).payload == b"in time"


def test_a_call_times_out_on_the_brokers_clock() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("prices")
        raised: list[TimedOut] = []

        def call() -> None:
            with pytest.raises(TimedOut) as caught:
                client.call("prices", b"?", timeout="5m")
            raised.append(caught.value)

        thread = threading.Thread(target=call)
        thread.start()
        message = next(iter(client.consumer("prices")))
        broker.advance("4m59s")
        assert thread.is_alive()
        broker.advance("2s")
        thread.join()
        assert raised[0].details["status"] == "leased"
        outcome = message.reply(b"late")
        assert (outcome.status, message.finished) == ("dead", True)
        assert outcome.reason is not None
        assert "too late" in outcome.reason
        dead = client.messages("_replies").dead(payload=True).to_pylist()
        assert [row["payload"] for row in dead] == [b"late"]
        assert dead[0]["reason"] == outcome.reason
        assert dead[0]["id"] == outcome.id
        # Nobody has to do it again.
        assert client.messages("prices").count()["done"] == 1
        assert client.messages("_replies").redrive(outcome.id).ok


def test_a_request_that_nobody_took_is_withdrawn() -> None:
    with VirtualBroker() as broker:
        client = broker.client(owner="me")
        client.create_topic("prices")
        raised: list[str] = []

        def call() -> None:
            with pytest.raises(TimedOut) as caught:
                client.call("prices", b"?", timeout="5s")
            raised.append(caught.value.details["status"])

        thread = threading.Thread(target=call)
        thread.start()
        while not client.messages("prices").count()["ready"]:
            pass
        broker.advance("6s")
        thread.join()
        assert raised == ["ok"]
        counts = client.messages("prices").count()
        assert (counts["cancelled"], counts["ready"]) == (1, 0)


def test_an_answer_for_nobody_is_dead_in_the_inbox() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("prices")
        with replier(client, "prices"):
            client.call("prices", b"?")
        (inbox,) = inboxes(client)
        client.producer(inbox).send(b"!", headers={"correlation_id": "long ago"}).result()
        broker.settle()
        (dead,) = client.messages(inbox).dead().to_pylist()
        assert dead["reason"] == TOO_LATE


def test_inboxes_go_with_their_clients() -> None:
    with VirtualBroker() as broker:
        client, caller = broker.client(), broker.client()
        client.create_topic("prices")
        with replier(client, "prices"):
            caller.call("prices", b"?")
        assert len(inboxes(client)) == 1
        caller.close()
        assert inboxes(client) == []
        with pytest.raises(Closed):
            caller.call("prices", b"?")


def test_the_inbox_of_a_client_that_died_goes_after_a_while() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        caller = broker.client()
        client.create_topic("prices")
        with replier(client, "prices"):
            caller.call("prices", b"?")
            (inbox,) = inboxes(client)
            broker.settle()
            broker.advance("2h")
            assert inboxes(client) == [inbox], "its owner waits for answers"
            # As if its process had been killed: nobody waits, nobody deletes it.
            caller.calls.inbox()._consumer.close()
            broker.advance("9m")
            assert inboxes(client) == [inbox]
            broker.advance("20m")
            assert inboxes(client) == []


def test_a_reply_to_a_caller_that_is_gone_is_dead() -> None:
    with VirtualBroker() as broker:
        client, caller = broker.client(), broker.client()
        client.create_topic("prices")

        def call() -> None:
            with pytest.raises(Closed):
                caller.call("prices", b"?", timeout="1h")

        thread = threading.Thread(target=call)
        thread.start()
        message = next(iter(client.consumer("prices")))
        caller.close()
        thread.join()
        outcome = message.reply(b"!")
        assert (outcome.status, outcome.reason) == (
            "dead",
            "nobody waits: the caller's inbox is gone",
        )


def test_an_inbox_that_somebody_deleted_is_made_anew() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("prices")
        with replier(client, "prices"):
            client.call("prices", b"?")
            (inbox,) = inboxes(client)
            client.delete_topic(inbox)
            # The session hears of it in its own time; until then a call may go the old way.
            while True:
                try:
                    assert client.call("prices", b"ab", timeout="1h").payload == b"abab"
                    break
                except OutcomeUnknown:
                    continue
            assert inboxes(client) not in ([], [inbox])


def test_tasks_call_and_reply() -> None:
    async def story(broker: VirtualBroker) -> None:
        async with fasti.aio.Client(broker.client()) as client:
            await client.create_topic("prices")

            consumer = client.consumer("prices", prefetch=256)

            async def answer() -> None:
                async for message in consumer:
                    message.reply(message.payload * 2, wait=False)

            server = asyncio.create_task(answer())
            calls = [client.call("prices", b"%d." % n, timeout="1h") for n in range(1000)]
            answers = await asyncio.gather(*calls)
            assert [each.payload for each in answers] == [b"%d." % n * 2 for n in range(1000)]
            await consumer.close()
            await server
            with pytest.raises(NotFound):
                await client.call("nowhere", b"?")
            await (await client.producer("prices").send(b"", key="a", delay="1h"))
            with pytest.raises(RowsFailed):
                await client.call("prices", b"?", key="a")
            late = asyncio.create_task(client.call("prices", b"late", timeout="5s"))
            message = await anext(client.consumer("prices"))
            broker.advance("6s")
            with pytest.raises(TimedOut, match="its reply will be dead"):
                await late
            outcome = await message.reply(b"!")
            assert outcome is not None
            assert outcome.status == "dead"
            await client.create_topic("silent")
            given_up = asyncio.create_task(client.call("silent", b"?", timeout="5s"))
            silent = client.messages("silent")
            while not (await silent.count())["ready"]:
                pass
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            while not (await silent.count())["cancelled"]:
                pass

    with VirtualBroker() as broker:
        asyncio.run(story(broker))


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_what_a_handler_returns_is_the_answer(kind: str) -> None:
    app = fasti.App()

    def double(order: dict[str, int]) -> dict[str, int] | None:
        return {"n": 2 * order["n"]} if order["n"] else None

    async def double_async(order: dict[str, int]) -> dict[str, int] | None:
        return double(order)

    app.on("orders")(double if kind == "threads" else double_async)

    @app.on("raw", concurrency=4)
    def raw(message: fasti.Message) -> bytes:
        if message.payload == b"self":
            message.reply(b"by myself")
            return b"ignored"
        if message.payload == b"large":
            return b"x" * (2 << 20)
        return message.payload.upper()

    with VirtualBroker() as broker:
        client = broker.client()
        app.bind(client)
        with app:
            answer = client.call("orders", b'{"n": 21}', content_type="application/json")
            assert (answer.payload, answer.content_type) == (b'{"n":42}', "application/json")
            assert client.call("orders", b'{"n": 0}').payload == b""
            assert client.call("raw", b"a").payload == b"A"
            assert client.call("raw", b"self").payload == b"by myself"
            client.producer("raw").send(b"no request").result()
            client.producer("raw").send(b"large", headers={"reply_to": "raw"}).result()
            while not client.messages("raw").list(state="scheduled").num_rows:
                pass
        assert client.messages("raw").count()["done"] == 3


def test_requests_of_a_group_of_a_log() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("asked", kind="log")
        with replier(client, "asked", group="repliers"):
            assert client.call("asked", b"ab").payload == b"abab"
        assert client.groups("asked").describe("repliers").lag == 0


def test_a_request_with_a_priority() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("urgent", kind="priority")
        with replier(client, "urgent"):
            assert client.call("urgent", b"ab", priority=3, subject="a.b").payload == b"abab"


def test_a_broker_that_is_away_spoils_no_later_call(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("prices")
        with replier(client, "prices"):
            assert client.call("prices", b"a", timeout="30s").payload == b"aa"
            broker.pause()
            with pytest.raises(TimedOut, match="still on its way"):
                client.call("prices", b"b", timeout="200ms")
            broker.resume()
            assert client.call("prices", b"c", timeout="30s").payload == b"cc"
