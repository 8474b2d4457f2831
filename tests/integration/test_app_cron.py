"""Handlers that are called by the clock: in virtual time, and by twenty workers of a real broker."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import AlreadyExists, InvalidArgument, NotFound
from fasti.testing.virtual import VirtualBroker
from tests.integration.serve_rig import SEGMENTS

WAIT_S = 60.0


@pytest.fixture
def client(fasti_broker: VirtualBroker) -> fasti.Client:
    return fasti_broker.client()


@pytest.fixture
def app(client: fasti.Client) -> fasti.App:
    return fasti.App().bind(client)


def test_a_handler_is_called_at_its_times(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: list[datetime] = []

    # Nine in Paris is eight in UTC in winter, and seven from 31 March 2030 on.
    @app.cron("0 9 * * MON-FRI", timezone="Europe/Paris")
    def report(at: datetime) -> None:
        got.append(at)

    with app:
        fasti_broker.advance_to(datetime(2030, 4, 2, tzinfo=UTC))
        fasti_broker.settle()
    first = datetime(2030, 3, 7, 8, tzinfo=UTC)
    winter = [
        first + timedelta(days=n) for n in (0, 1, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 18, 19, 20)
    ]
    winter += [first + timedelta(days=n) for n in (21, 22)]
    assert got == [*winter, datetime(2030, 4, 1, 7, tzinfo=UTC)]


def test_what_a_handler_takes(fasti_broker: VirtualBroker, app: fasti.App) -> None:
    got: dict[str, Any] = {}

    @app.every("1d")
    def nothing() -> None:
        got["nothing"] = True

    @app.every("1d", payload={7: "seven"})
    def value(numbers: dict[int, str]) -> None:
        got["value"] = numbers

    @app.every("1d")
    def raw(payload: bytes) -> None:
        got["raw"] = payload

    @app.every("1d", headers={"lang": "fr"})
    def message(message: fasti.Message) -> None:
        got["message"] = message.headers

    @app.cron("30 23 * * *", timezone="Asia/Tokyo")
    async def day(today: date, message: fasti.Message) -> None:
        got["day"] = (today, message.due)

    @app.every("1d")
    def maybe(order: dict[str, int] | None) -> None:
        got["maybe"] = order

    with app:
        fasti_broker.advance("1d")
        fasti_broker.settle()
    assert got["nothing"] is True
    assert got["value"] == {7: "seven"}
    assert got["raw"] == b""
    assert got["message"]["lang"] == "fr"
    assert got["message"]["fasti-schedule"] == "message"
    assert got["day"] == (date(2030, 3, 6), datetime(2030, 3, 6, 14, 30, tzinfo=UTC))
    assert got["maybe"] is None


def test_what_makes_no_sense_is_refused_when_it_is_declared(app: fasti.App) -> None:
    def takes(order: dict[str, int]) -> None: ...

    with pytest.raises(InvalidArgument, match=r"takes takes a value, so it needs a payload="):
        app.cron("@daily")(takes)
    with pytest.raises(InvalidArgument, match=r"takes.later: id: expected a valid integer"):
        app.cron("@daily", payload={"id": "x"})(takes)
    with pytest.raises(InvalidArgument, match="no option 'tz'"):
        app.cron("@daily", tz="UTC")(takes)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="interval"):
        app.every("soon")
    app.on("takes")(takes)
    with pytest.raises(AlreadyExists):
        app.cron("@daily", payload={"id": 1})(takes)
    assert [each.topic for each in app.handlers] == ["takes"]


def test_an_expression_that_is_wrong_keeps_the_app_from_starting_and_changes_nothing(
    app: fasti.App, client: fasti.Client
) -> None:
    @app.on("emails")
    def send(payload: bytes) -> None: ...

    @app.cron("61 * * * *")
    def tick() -> None: ...

    with pytest.raises(InvalidArgument, match="the schedule 'tick'"):
        app.start()
    assert client.topics() == []


def test_the_same_code_changes_nothing_and_other_code_changes_the_schedule(
    fasti_broker: VirtualBroker, client: fasti.Client, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []

    def deployed(expression: str) -> fasti.App:
        app = fasti.App(client, owner="shop")

        @app.cron(expression)
        def tick(at: datetime) -> None:
            got.append(at.isoformat(timespec="minutes"))

        return app

    for _ in range(3):
        with deployed("0 * * * *"):
            fasti_broker.advance("20m")
            fasti_broker.settle()
    schedules = client.schedules("cron.shop")
    assert got == ["2030-03-06T13:00+00:00"]
    assert schedules.get("tick").version == 1
    with caplog.at_level(logging.WARNING, "fasti.app"), deployed("30 * * * *"):
        fasti_broker.advance("31m")
        fasti_broker.settle()
    assert "schedule 'tick' of 'cron.shop' was changed to what its handler asks for" in caplog.text
    assert got == ["2030-03-06T13:00+00:00", "2030-03-06T13:30+00:00"]
    assert [each.name for each in schedules.list()] == ["tick"]


def test_a_schedule_whose_handler_is_gone_goes_on_and_is_reported(
    client: fasti.Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = fasti.App(client, owner="shop")
    before.cron("@daily", name="old")(lambda: None)
    with before:
        pass
    after = fasti.App(client, owner="shop")
    after.cron("@daily", name="new")(lambda: None)
    with caplog.at_level(logging.WARNING, "fasti.app"), after:
        pass
    assert "schedule 'old' has no handler" in caplog.text
    assert "fasti schedules delete cron.shop old" in caplog.text
    assert [each.name for each in client.schedules("cron.shop").list()] == ["new", "old"]


def test_paused_and_create(fasti_broker: VirtualBroker, client: fasti.Client) -> None:
    got: list[int] = []

    def app_with(**options: Any) -> fasti.App:
        app = fasti.App(client)
        app.every("1m", name="tick", **options)(lambda: got.append(1))
        return app

    with pytest.raises(NotFound):
        app_with(create=False).start()
    with app_with(paused=True):
        fasti_broker.advance("5m")
        fasti_broker.settle()
        assert got == []
    with app_with(create=False):
        fasti_broker.advance("5m")
        fasti_broker.settle()
        assert got == []
    with app_with(paused=False):
        fasti_broker.advance("2m")
        fasti_broker.settle()
    assert got == [1, 1]


def test_a_topic_that_holds_no_schedules_is_refused(app: fasti.App, client: fasti.Client) -> None:
    client.create_topic("cron")
    app.every("1m", name="tick")(lambda: None)
    with pytest.raises(InvalidArgument, match="give another one by schedules="):
        app.start()
    assert [each.name for each in client.topics()] == ["cron"]


def test_twenty_workers_at_once_make_one_schedule_and_each_occurrence_is_handled_once(
    tmp_path: Path,
) -> None:
    got: list[str] = []
    enough = threading.Event()
    together = threading.Barrier(20)
    failures: list[BaseException] = []

    def worker(address: str) -> None:
        app = fasti.App(address, owner="shop", grace="5s")

        @app.every("200ms", overlap="allow")
        def tick(message: fasti.Message) -> None:
            got.append(message.headers["fasti-occurrence"])
            if len(got) >= 10:
                enough.set()

        try:
            app.client.health()
            together.wait(WAIT_S)
            with app:
                assert enough.wait(WAIT_S)
        except BaseException as error:
            failures.append(error)
            enough.set()
            together.abort()

    with BrokerProcess(tmp_path, settings=SEGMENTS) as broker:
        workers = [threading.Thread(target=worker, args=(broker.address,)) for _ in range(20)]
        for each in workers:
            each.start()
        for each in workers:
            each.join(WAIT_S)
        assert failures == []
        with fasti.connect(broker.address) as client:
            assert [each.name for each in client.schedules("cron.shop").list()] == ["tick"]
            found = client.schedules("cron.shop").get("tick")
            assert found.version == 1
            assert client.messages("tick").count()["done"] == len(got)
    assert len(set(got)) == len(got) >= 10
