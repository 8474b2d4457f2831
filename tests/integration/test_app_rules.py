"""What becomes of a handler's messages, with a broker in virtual time."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from typing import Any

import pytest

import fasti
from fasti.errors import AlreadyExists, InvalidArgument, NotFound, TopicMismatch
from fasti.testing.virtual import VirtualBroker

WAIT_S = 30.0


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Gate:
    """A handler waits at it, and whoever tests knows when it is there."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._open = threading.Event()

    def wait(self) -> None:
        self.reached.release()
        assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()

    def await_reached(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.reached.acquire(timeout=WAIT_S)


@pytest.fixture
def client(fasti_broker: VirtualBroker) -> fasti.Client:
    return fasti_broker.client()


@pytest.fixture
def app(client: fasti.Client) -> fasti.App:
    return fasti.App().bind(client)


def reasons(client: fasti.Client, topic: str = "emails") -> list[str]:
    return list(client.messages(topic).dead().column("reason").to_pylist())


def test_messages_are_handled_at_their_moment(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    got: list[Any] = []

    @app.on("emails")
    def send(order: dict[str, int], message: fasti.Message) -> None:
        got.append((order, message.key, message.headers, fasti_broker.now >= message.due))

    receipt = send.later({"id": 7}, delay="3d", key="order-7", headers={"lang": "en"})
    assert receipt.result(WAIT_S).ok
    with app:
        fasti_broker.settle()
        assert got == []
        fasti_broker.advance("3d")
        fasti_broker.settle()
    assert got == [({"id": 7}, "order-7", {"lang": "en"}, True)]
    assert client.messages("emails").count()["done"] == 1
    assert app.stats()["emails"].handled == 1


def test_a_failure_comes_again_after_the_handlers_backoff_and_is_dead_in_the_end(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    attempts: list[int] = []
    backoff = fasti.Backoff("10s", factor=3, limit="1h", jitter=0)

    @app.on("emails", retry=backoff, max_attempts=3)
    def send(message: fasti.Message) -> None:
        attempts.append(message.attempts)
        raise ValueError("no address")

    send.later(b"x").result(WAIT_S)
    with app:
        for wait_s in (10, 30):
            fasti_broker.settle()
            before = len(attempts)
            # Well before it is sent ahead, which would count as open work.
            fasti_broker.advance(wait_s - 1)
            fasti_broker.settle()
            assert len(attempts) == before
            fasti_broker.advance(1)
        fasti_broker.settle()
    assert attempts == [1, 2, 3]
    assert reasons(client) == ["ValueError: no address"]
    assert app.stats()["emails"].failed == 3


def test_retry_says_when_and_counts(
    fasti_broker: VirtualBroker,
    app: fasti.App,
    client: fasti.Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[int, str | None]] = []

    @app.on("emails", max_attempts=3)
    def send(message: fasti.Message) -> None:
        seen.append((message.attempts, message.last_reason))
        raise fasti.Retry(delay="1h", reason=f"full at {message.attempts}")

    receipt = send.later(b"x", key="user-7").result(WAIT_S)
    with app, caplog.at_level("INFO", "fasti.app"):
        fasti_broker.settle()
        waiting = client.messages("emails").get(key="user-7")
        assert (waiting["state"], waiting["reason"]) == ("scheduled", "full at 1")
        for hour in range(1, 4):
            fasti_broker.advance("59m")
            fasti_broker.settle()
            assert len(seen) == hour
            fasti_broker.advance("1m")
            fasti_broker.settle()
    assert seen == [(1, None), (2, "full at 1"), (3, "full at 2")]
    assert reasons(client) == ["full at 3"]
    stats = app.stats()["emails"]
    assert (stats.retried, stats.failed) == (3, 0)
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    told = f"<Message {receipt.id} of 'emails', key 'user-7', attempt"
    wants = [line for line in lines if "asked to retry" in line[1]]
    assert [level for level, _ in wants] == ["INFO", "INFO", "ERROR"]
    assert all(told in text for _, text in wants)
    assert wants[-1][1].endswith("full at 3; it is dead now, after 3 attempts")


@pytest.mark.parametrize("failing", ["threads", "asyncio"])
def test_the_last_failure_says_that_it_is_dead(
    fasti_broker: VirtualBroker, app: fasti.App, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    if failing == "threads":

        @app.on("emails", max_attempts=2)
        def send(payload: bytes) -> None:
            raise ValueError("no address")

    else:

        @app.on("emails", max_attempts=2)
        async def send(payload: bytes) -> None:
            raise ValueError("no address")

    receipt = send.later(b"x", key="user-7").result(WAIT_S)
    with app, caplog.at_level("INFO", "fasti.app"):
        fasti_broker.settle()
        fasti_broker.advance("1d")
        fasti_broker.settle()
    lines = [each for each in caplog.records if "failed on" in each.getMessage()]
    assert [each.levelname for each in lines] == ["WARNING", "ERROR"]
    name = f"<Message {receipt.id} of 'emails', key 'user-7', attempt %d>: ValueError: no address"
    assert lines[0].getMessage().endswith(name % 1)
    assert lines[1].getMessage().endswith(name % 2 + "; it is dead now, after 2 attempts")


def test_retry_that_does_not_count_gives_back_and_reject_ends(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    seen: list[int] = []

    @app.on("emails", max_attempts=2)
    def send(message: fasti.Message) -> None:
        seen.append(message.attempts)
        if len(seen) < 4:
            raise fasti.Retry(delay="1h", count=False)
        raise fasti.Reject("no such order")

    send.later(b"x").result(WAIT_S)
    with app:
        for _ in range(3):
            fasti_broker.settle()
            fasti_broker.advance("1h")
        fasti_broker.settle()
    assert seen == [1, 1, 1, 1]
    assert reasons(client) == ["no such order"]
    stats = app.stats()["emails"]
    assert (stats.retried, stats.rejected, stats.handled) == (3, 1, 0)


def test_a_payload_that_does_not_fit_is_dead_at_once(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    @app.on("emails")
    def send(order: dict[str, int]) -> None:
        raise AssertionError("it must not be called")

    with pytest.raises(InvalidArgument, match="id: expected a valid integer, not 'seven'"):
        send.later({"id": "seven"})  # type: ignore[dict-item]
    # From elsewhere, without the handler's types.
    client.create_topic("emails")
    client.producer("emails").send(b'{"id": "seven"}').result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert reasons(client) == [
        "the payload does not fit: id: expected a valid integer, not 'seven'"
    ]


def test_keys_that_are_not_text_come_back(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: list[dict[Level, int]] = []

    @app.on("levels")
    def take(levels: dict[Level, int]) -> None:
        got.append(levels)

    take.later({Level.LOW: 1, Level.HIGH: 2}).result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert got == [{Level.LOW: 1, Level.HIGH: 2}]


def test_what_a_handler_has_finished_is_not_finished_again(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    @app.on("emails")
    def send(message: fasti.Message) -> None:
        if message.payload == b"reject":
            message.reject("by hand")
        else:
            message.ack()
            raise ValueError("afterwards")

    send.later(b"reject").result(WAIT_S)
    send.later(b"ack").result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert reasons(client) == ["by hand"]
    assert client.messages("emails").count()["done"] == 1
    assert app.stats()["emails"].refused == 0


def test_pending_messages_are_moved_and_cancelled_by_key(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    got: list[str] = []

    @app.on("emails")
    def send(text: str) -> None:
        got.append(text)

    send.later("moved", delay="1h", key="a")
    send.later("cancelled", delay="1h", key="b")
    assert send.move(key="a", delay="2h").status == "ok"
    assert send.cancel(key="b").status == "ok"
    assert send.cancel(key="c").status == "not_found"
    with app:
        fasti_broker.advance("1h")
        fasti_broker.settle()
        assert got == []
        fasti_broker.advance("1h")
        fasti_broker.settle()
    assert got == ["moved"]


def test_a_cancel_may_be_the_first_that_a_broker_hears(app: fasti.App) -> None:
    @app.on("emails")
    def send(text: str) -> None: ...

    assert send.cancel(key="a").status == "not_found"
    assert send.move(key="a", delay="1h").status == "not_found"


def test_only_the_owner_changes_what_an_app_sent(
    fasti_broker: VirtualBroker, client: fasti.Client
) -> None:
    app = fasti.App(client, owner="billing")

    @app.on("emails")
    def send(text: str) -> None: ...

    send.later("x", delay="1h", key="a").result(WAIT_S)
    assert client.messages("emails", owner="sales").cancel(key="a").status == "not_owner"
    assert send.cancel(key="a").status == "ok"


# Topics


def test_a_missing_topic_is_made_with_what_is_asked(app: fasti.App, client: fasti.Client) -> None:
    @app.on("emails", max_attempts=3, create={"lease": "2m", "partitions": 2})
    def send(payload: bytes) -> None: ...

    with app:
        settings = client.topic("emails").settings
    assert (settings.max_attempts, settings.lease_us, settings.partitions) == (3, 120_000_000, 2)


def test_the_handlers_policy_changes_the_topic_and_says_so(
    app: fasti.App, client: fasti.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_topic("emails", max_attempts=9, lease="1m")

    @app.on("emails", retry=fasti.Backoff("7s"), create={"lease": "2m"})
    def send(payload: bytes) -> None: ...

    with caplog.at_level(logging.WARNING, "fasti.app"), app:
        settings = client.topic("emails").settings
    assert settings.retry.base_us == 7_000_000
    assert (settings.max_attempts, settings.lease_us) == (9, 60_000_000)
    assert "topic 'emails' was changed to what its handler asks for: retry" in caplog.text
    assert "created with other settings: lease_us: 60000000 (asked: 120000000)" in caplog.text


def test_without_create_a_topic_is_neither_made_nor_changed(
    app: fasti.App, client: fasti.Client, caplog: pytest.LogCaptureFixture
) -> None:
    @app.on("emails", create=False, max_attempts=3)
    def send(payload: bytes) -> None: ...

    with pytest.raises(NotFound, match="create=False"):
        app.start()
    client.create_topic("emails", max_attempts=9)
    with caplog.at_level(logging.WARNING, "fasti.app"), app:
        assert client.topic("emails").settings.max_attempts == 9
    assert "has other settings than its handler asks for: max_attempts: 9 (asked: 3)" in caplog.text


def test_what_an_app_made_can_be_made_again_by_hand(app: fasti.App, client: fasti.Client) -> None:
    @app.on("emails")
    def send(payload: bytes) -> None: ...

    with app:
        client.create_topic("emails")
        with pytest.raises((TopicMismatch, AlreadyExists)):
            client.create_topic("emails", lease="9m")


# Stopping


def test_stopping_waits_for_what_runs_and_gives_back_the_rest(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    gate = Gate()

    @app.on("emails", concurrency=2, prefetch=8)
    def send(payload: bytes) -> None:
        gate.wait()

    for _ in range(8):
        send.later(b"x").result(WAIT_S)
    app.start()
    gate.await_reached(2)
    stopping = threading.Thread(target=app.stop)
    stopping.start()
    counts = client.messages("emails").count
    # Six were never begun: they are back while the other two still run.
    while counts()["ready"] < 6:
        assert stopping.is_alive()
    assert counts()["leased"] == 2
    gate.open()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    found = counts()
    assert (found["done"], found["ready"], found["leased"]) == (2, 6, 0)
    attempts = client.messages("emails").list().column("attempts").to_pylist()
    assert attempts == [0] * 6


def test_what_does_not_end_within_the_grace_is_given_back(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    gate = Gate()
    ended = threading.Event()

    @app.on("emails")
    def send(payload: bytes) -> None:
        gate.wait()
        ended.set()

    send.later(b"x").result(WAIT_S)
    app.start()
    gate.await_reached()
    app.stop(grace=0)
    assert client.messages("emails").count()["ready"] == 1
    gate.open()
    assert ended.wait(WAIT_S)
    # Its end counts for nothing: the message comes again.
    got: list[bytes] = []
    again = fasti.App(client)

    @again.on("emails")
    def send_again(payload: bytes) -> None:
        got.append(payload)

    with again:
        fasti_broker.settle()
    assert got == [b"x"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_handler_may_end_the_app(
    app: fasti.App, client: fasti.Client, error: type[BaseException]
) -> None:
    over = threading.Event()

    @app.on("emails")
    def send(payload: bytes) -> None:
        raise error

    send.later(b"x").result(WAIT_S)
    app.start(ended=over.set)
    assert over.wait(WAIT_S)
    assert not app.running
    app.stop()
    assert client.messages("emails").count()["ready"] == 1


def test_a_handler_that_calls_stop_does_not_wait_for_itself(
    app: fasti.App, client: fasti.Client
) -> None:
    over = threading.Event()

    @app.on("emails")
    def send(payload: bytes) -> None:
        app.stop()

    send.later(b"x").result(WAIT_S)
    app.start(ended=over.set)
    assert over.wait(WAIT_S)
    assert client.messages("emails").count()["done"] == 1


def test_an_app_whose_topic_is_deleted_ends_with_the_error(
    app: fasti.App, client: fasti.Client
) -> None:
    over = threading.Event()

    @app.on("emails")
    def send(payload: bytes) -> None: ...

    app.start(ended=over.set)
    client.delete_topic("emails")
    assert over.wait(WAIT_S)
    with pytest.raises(NotFound):
        app.stop()


def test_an_app_can_be_started_again(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: list[bytes] = []

    @app.on("emails")
    def send(payload: bytes) -> None:
        got.append(payload)

    for payload in (b"one", b"two"):
        with app:
            with pytest.raises(InvalidArgument, match="the app is running already"):
                app.start()
            send.later(payload).result(WAIT_S)
            fasti_broker.settle()
    assert got == [b"one", b"two"]


# Hooks


def test_hooks_run_around_everything_and_a_failing_one_keeps_the_app_from_starting(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    seen: list[str] = []
    broken = False

    @app.on_start
    def connect() -> None:
        seen.append("start")
        if broken:
            raise ConnectionError("no database")

    @app.on_stop
    async def disconnect() -> None:
        await asyncio.sleep(0)
        seen.append("stop")

    @app.on("emails")
    def send(payload: bytes) -> None:
        seen.append("handled")

    send.later(b"x").result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert seen == ["start", "handled", "stop"]
    broken = True
    with pytest.raises(ConnectionError):
        app.start()
    assert not app.running


def test_a_hook_may_send(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    """Also from the loop's thread, while the app is being started by another."""
    got: list[str] = []

    @app.on_start
    async def announce() -> None:
        send.later("started")

    @app.on("emails")
    def send(text: str) -> None:
        got.append(text)

    with app:
        fasti_broker.settle()
        app.producer("emails").flush()
        fasti_broker.settle()
    assert got == ["started"]


# asyncio


def test_async_handlers_run_together_up_to_their_number(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    together = most = 0
    full = threading.Event()
    go: asyncio.Event | None = None

    @app.on_start
    async def make() -> None:
        nonlocal go
        go = asyncio.Event()

    @app.on("emails", concurrency=3, prefetch=20)
    async def send(number: int) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together == 3:
            full.set()
        assert go is not None
        await go.wait()
        # The rest finds it open; so that they overlap they give way to each other.
        await asyncio.sleep(0)
        together -= 1

    for number in range(10):
        send.later(number).result(WAIT_S)
    with app:
        assert full.wait(WAIT_S)
        assert app.stats()["emails"].in_flight == 3
        assert go is not None
        running = app._running
        assert running is not None
        assert running._loop is not None
        running._loop.loop.call_soon_threadsafe(go.set)
        fasti_broker.settle()
    assert most == 3
    assert app.stats()["emails"].handled == 10


def test_an_async_handler_over_its_time_limit_is_cancelled_and_has_failed(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    cancelled: list[bool] = []

    @app.on("emails", time_limit="50ms", max_attempts=1)
    async def send(payload: bytes) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    send.later(b"x").result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert cancelled == [True]
    assert reasons(client) == ["time limit: not done after 0.05 s"]


def test_a_timeout_of_the_handlers_own_is_a_failure_like_any_other(
    fasti_broker: VirtualBroker, app: fasti.App, client: fasti.Client
) -> None:
    @app.on("emails", time_limit="1h", max_attempts=1)
    async def send(payload: bytes) -> None:
        raise TimeoutError("the server was slow")

    send.later(b"x").result(WAIT_S)
    with app:
        fasti_broker.settle()
    assert reasons(client) == ["TimeoutError: the server was slow"]


def test_async_handlers_that_do_not_end_within_the_grace_are_cancelled(
    app: fasti.App, client: fasti.Client
) -> None:
    began = threading.Event()

    @app.on("emails")
    async def send(payload: bytes) -> None:
        began.set()
        await asyncio.Event().wait()

    send.later(b"x").result(WAIT_S)
    app.start()
    assert began.wait(WAIT_S)
    app.stop(grace=0)
    found = client.messages("emails").count()
    assert (found["ready"], found["leased"]) == (1, 0)


def test_systemexit_in_an_async_handler_ends_the_app(app: fasti.App, client: fasti.Client) -> None:
    over = threading.Event()

    @app.on("emails")
    async def send(payload: bytes) -> None:
        raise SystemExit

    send.later(b"x").result(WAIT_S)
    app.start(ended=over.set)
    assert over.wait(WAIT_S)
    assert client.messages("emails").count()["ready"] == 1
