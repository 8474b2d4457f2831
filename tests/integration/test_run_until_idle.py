"""`run_until_idle`: an app's handlers in virtual time, until they have nothing to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import fasti
from fasti.errors import InvalidArgument, TimedOut
from fasti.testing.virtual import START, VirtualBroker
from tests.integration import app_in_idle


@pytest.fixture
def app(fasti_client: fasti.Client) -> fasti.App:
    return fasti.App(fasti_client)


def test_it_runs_what_is_ready_and_time_stands_still(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    got: list[int] = []

    @app.on("numbers")
    def count_down(number: int) -> None:
        got.append(number)
        if number:
            # Nobody waits for the receipt: it counts as work even so.
            count_down.later(number - 1)

    count_down.later(3, key="three")
    count_down.later(9, delay="1h")
    runs = fasti_broker.run_until_idle(app)
    assert got == [3, 2, 1, 0]
    assert [(run.topic, run.end, run.at) for run in runs] == [("numbers", "acked", START)] * 4
    assert [run.key for run in runs] == ["three", None, None, None]
    assert (fasti_broker.now, app.running) == (START, False)
    assert fasti_broker.run_until_idle(app) == []


def test_until_a_moment_everything_comes_at_its_time(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    @app.on("emails", max_attempts=3, retry=fasti.Backoff("10m", factor=3, jitter=0))
    def send(text: str) -> None:
        if text == "fails":
            raise ValueError("no address")
        if text == "bad":
            raise fasti.Reject("never")

    @app.cron("0 15 * * *")
    async def tea() -> None: ...

    send.later("fails", key="f")
    send.later("bad", delay="20m", key="b")
    send.later("soon", delay="10ms", key="s")
    send.later("too late", delay="4h", key="l")
    runs = fasti_broker.run_until_idle(app, until="3h")
    at = {"m": timedelta(minutes=1), "ms": timedelta(milliseconds=1)}
    assert [(run.topic, run.key, run.end, run.reason, run.at - START) for run in runs] == [
        ("emails", "f", "nacked", "ValueError: no address", 0 * at["m"]),
        ("emails", "s", "acked", "", 10 * at["ms"]),
        ("emails", "f", "nacked", "ValueError: no address", 10 * at["m"]),
        ("emails", "b", "rejected", "never", 20 * at["m"]),
        ("emails", "f", "exhausted", "ValueError: no address", 40 * at["m"]),
        ("tea", None, "acked", "", 180 * at["m"]),
    ]
    assert fasti_broker.now == START + timedelta(hours=3)
    later = fasti_broker.run_until_idle(app, until=datetime(2030, 3, 7, 12, tzinfo=UTC))
    assert [(run.topic, run.at.hour) for run in later] == [("emails", 16)]
    with pytest.raises(InvalidArgument, match="is past"):
        fasti_broker.run_until_idle(app, until=START)


def test_a_handler_that_feeds_itself_has_no_end_and_is_stopped(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    @app.on("circle")
    def again(number: int) -> None:
        again.later(number + 1)

    again.later(0)
    with pytest.raises(TimedOut, match="does a handler put a message for itself"):
        fasti_broker.run_until_idle(app, runs_max=50)
    assert not app.running


def test_what_comes_again_for_ever_needs_a_nearer_moment(
    fasti_broker: VirtualBroker, app: fasti.App
) -> None:
    @app.every("1s")
    def tick() -> None: ...

    with pytest.raises(TimedOut, match="give a nearer `until`"):
        fasti_broker.run_until_idle(app, until="1h", runs_max=100)


def test_a_handler_that_hangs_is_named(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    import threading

    let_go = threading.Event()

    @app.on("stuck")
    def wait(payload: bytes) -> None:
        let_go.wait(60)

    wait.later(b"x")
    threading.Timer(0.5, let_go.set).start()
    with pytest.raises(TimedOut, match=r"still open after 0.1 s: {'stuck': .*does a handler hang"):
        fasti_broker.run_until_idle(app, timeout=0.1)


def test_an_app_with_an_address_gets_a_client_of_each_tests_broker() -> None:
    for _ in range(2):
        with VirtualBroker() as broker:
            app_in_idle.app.bind(broker.client())
            app_in_idle.square.later(7, key="seven").result(60)
            runs = broker.run_until_idle(app_in_idle.app)
            assert [(run.key, run.end) for run in runs] == [("seven", "acked")]
    with VirtualBroker() as broker:
        # Bound to a broker that is gone.
        assert broker.run_until_idle(app_in_idle.app) == []


def test_an_app_that_runs_goes_on(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: list[str] = []

    @app.on("texts")
    def take(text: str) -> None:
        got.append(text)

    with app:
        take.later("a", delay="1d")
        assert len(fasti_broker.run_until_idle(app, until="1d")) == 1
        assert app.running
    assert got == ["a"]


def test_groups_of_logs(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: list[int] = []

    @app.on("events", group="billing", retry=fasti.Backoff("1m", jitter=0))
    def bill(number: int) -> None:
        got.append(number)
        if got == [1]:
            raise ValueError("not yet")

    bill.later(1)
    runs = fasti_broker.run_until_idle(app)
    assert (got, [run.end for run in runs]) == ([1], ["nacked"])
    runs = fasti_broker.run_until_idle(app, until="10m")
    assert (got, [run.end for run in runs]) == ([1, 1], ["acked"])


def test_other_topics_may_have_work(
    fasti_broker: VirtualBroker, fasti_client: fasti.Client, app: fasti.App
) -> None:
    fasti_client.create_topic("others")
    fasti_client.producer("others").send(b"x").result(60)
    app.on("mine")(lambda payload: None)
    assert fasti_broker.run_until_idle(app, until="1h") == []
