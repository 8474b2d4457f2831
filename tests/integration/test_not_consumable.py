"""Consuming what can't be consumed says at once what to do instead; an app that can't start changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.errors import FastiError, InvalidArgument, NotFound
from fasti.testing import VirtualBroker

KINDS = ["cron", "kv", "log"]
ADVICE = {
    "cron": "consume their targets; client.schedules",
    "kv": r"client.kv\('t'\).watch\(\)",
    "log": r"group=.*client.reader\('t'\)",
}


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    return broker.client()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_consumer_is_told(client: fasti.Client, kind: Any) -> None:
    client.create_topic("t", kind=kind)
    consumer = client.consumer("t")
    for take in (lambda: next(iter(consumer)), lambda: consumer.take(1), consumer.batches):
        with pytest.raises(InvalidArgument, match=ADVICE[kind]):
            take()
    consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_told(broker: VirtualBroker, client: fasti.Client, kind: Any) -> None:
    client.create_topic("t", kind=kind)

    async def main() -> None:
        asynchronous = fasti.aio.Client(broker.client())
        with pytest.raises(InvalidArgument, match=ADVICE[kind]):
            await anext(asynchronous.consumer("t"))
        await asynchronous.close()

    asyncio.run(main())


def test_a_group_is_for_logs(client: fasti.Client) -> None:
    client.create_topic("t")
    with pytest.raises(InvalidArgument, match="groups are for logs"):
        next(iter(client.consumer("t", group="billing")))


# Apps


def handler(app: fasti.App, topic: str, **options: Any) -> None:
    @app.on(topic, **options)
    def handle(payload: bytes) -> None: ...


WRONG: list[tuple[dict[str, Any], type[FastiError], str]] = [
    ({"topic": "cron"}, InvalidArgument, "consume their targets"),
    ({"topic": "kv"}, InvalidArgument, "watch"),
    ({"topic": "log"}, InvalidArgument, "group="),
    ({"topic": "timeline", "group": "billing"}, InvalidArgument, "groups are for logs"),
    ({"topic": "new", "create": {"kind": "kv"}}, InvalidArgument, "is a kv topic"),
    ({"topic": "new", "create": {"kind": "log"}}, InvalidArgument, "is a log"),
    ({"topic": "new", "create": {"partitions": 0}}, InvalidArgument, "partitions"),
    ({"topic": "new", "create": {"no_such": 1}}, InvalidArgument, "no_such"),
    ({"topic": "new", "max_attempts": -1}, InvalidArgument, "no end"),
    ({"topic": "timeline", "max_attempts": 1 << 20}, InvalidArgument, "no end"),
    ({"topic": "new", "create": False}, NotFound, "create=False"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_an_app_that_can_not_start_has_changed_nothing(
    client: fasti.Client, wrong: dict[str, Any], error: type[FastiError], text: str
) -> None:
    for kind in ("timeline", "cron", "kv", "log"):
        client.create_topic(kind, kind=kind)  # type: ignore[call-overload, unused-ignore]
    before = {each.name: each.settings for each in client.topics()}
    app = fasti.App(client)
    started: list[bool] = []
    app.on_start(lambda: started.append(True))
    # Those before the wrong one would be fine: a topic to make, one to change, a group, a schedule.
    handler(app, "first")
    handler(app, "timeline2", create={"lease": "1m"})
    handler(app, "log", group="mine")

    @app.cron("0 9 * * *")
    def nightly() -> None: ...

    handler(app, **wrong)
    with pytest.raises(error, match=text):
        app.start()
    assert {each.name: each.settings for each in client.topics()} == before
    assert not started
    assert client.groups("log").list() == []
    assert not app.running
