"""What users of the SDK meet when the broker has a fault: an answer, and no client that goes on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fasti
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron.commands import Fire
from fasti.core.timeline import change, produce, turns
from fasti.core.work import Work
from fasti.doors.flight import FlightDoor
from fasti.errors import InternalError, InvalidArgument
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles

SETTINGS = ShardSettings(segment_bytes=1 << 18, memory_bytes=64 << 20, leases_max=4096)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    shard = Shard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
    made = Service(OneShard(shard), Metrics())
    yield made
    made.close()
    shard.close(checkpoint=False)


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    door = FlightDoor(service)
    yield f"fasti://127.0.0.1:{door.port}"
    service.begin_stopping()
    door.stop()


@pytest.fixture
def client(address: str) -> Iterator[fasti.Client]:
    with fasti.connect(address) as made:
        made.create_topic("jobs")
        yield made


def recoveries(service: Service) -> int:
    """When all of them are over."""
    service.placement.catalogue.call(co.Count("jobs"), 60)
    return service.placement.catalogue.recoveries


def raise_early(work: Work, command: Any) -> Any:
    raise ZeroDivisionError("a fault")


def test_a_consumer_of_a_topic_that_can_not_be_consumed_is_told_so(
    service: Service, address: str, client: fasti.Client
) -> None:
    client.create_topic("nightly", kind="cron")
    with fasti.connect(address) as other:
        sent = [other.producer("jobs").send(b"x") for _ in range(50)]
        for _ in range(5):
            with pytest.raises(InvalidArgument), client.consumer("nightly", timeout=60) as consumer:
                next(iter(consumer))
        assert all(receipt.result().ok for receipt in sent)
    assert recoveries(service) == 0


def test_a_cancel_that_meets_a_fault_is_told_and_nobody_else_is(
    service: Service, address: str, client: fasti.Client
) -> None:
    service.placement.catalogue.engine._by_kind[co.Cancel]["timeline"] = raise_early
    [message] = [client.producer("jobs").send(b"x", delay="1h").result().id]
    with pytest.raises(InternalError) as told:
        client.messages("jobs").cancel(id=message)
    assert told.value.details["command"] == "Cancel"
    with fasti.connect(address) as other:
        assert other.producer("jobs").send(b"y").result().ok
    assert recoveries(service) == 0


def test_a_producer_whose_batch_meets_a_fault_goes_on_with_the_next(
    service: Service, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = produce.check_rows

    def fail(command: Any) -> None:
        if b"poison" in command.rows.batch.column("payload").to_pylist():
            raise ZeroDivisionError("a fault")
        check(command)

    monkeypatch.setattr(produce, "check_rows", fail)
    producer = client.producer("jobs")
    assert producer.send(b"before").result().ok
    with pytest.raises(InternalError):
        producer.send(b"poison").result()
    assert producer.send(b"after").result().ok
    assert recoveries(service) == 0


def test_a_call_that_makes_the_broker_recover_is_not_repeated(
    service: Service, client: fasti.Client
) -> None:
    def fail_late(work: Work, command: Any) -> Any:
        change.cancel(work, command)
        raise ZeroDivisionError("a fault")

    service.placement.catalogue.engine._by_kind[co.Cancel]["timeline"] = fail_late
    message = client.producer("jobs").send(b"x", delay="1h").result().id
    with pytest.raises(InternalError):
        client.messages("jobs").cancel(id=message)
    assert recoveries(service) == 1
    # The next engine has no fault, and has the message.
    assert client.messages("jobs").cancel(id=message).ok


def test_a_consumer_that_makes_the_broker_recover_again_and_again_is_ended(
    service: Service, address: str, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = turns.serve_line

    def fail(work: Work, topic: Any, *more: Any) -> Any:
        if topic.name == "bad":
            raise ZeroDivisionError("a fault")
        return serve(work, topic, *more)

    monkeypatch.setattr(turns, "serve_line", fail)
    client.create_topic("bad")
    with fasti.connect(address) as other:
        other.producer("bad").send(b"x").result()
        good = client.consumer("jobs", timeout=60)
        with pytest.raises(InternalError), other.consumer("bad", timeout=60) as consumer:
            next(iter(consumer))
        assert recoveries(service) == 2
        # Whoever had nothing to do with it has connected again and goes on.
        client.producer("jobs").send(b"y").result()
        message = next(iter(good))
        assert message.payload == b"y"
        message.ack()
        good.close()


@pytest.mark.parametrize("late", [False, True])
def test_a_published_batch_ends_although_a_parcel_meets_a_fault(
    service: Service, client: fasti.Client, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    cancel = change.cancel

    def fail(work: Work, command: Any) -> Any:
        if late:
            cancel(work, command)
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(change, "cancel", fail)
    service.placement.catalogue.engine._by_kind[co.Cancel]["timeline"] = fail
    client.producer("jobs").send(b"x", key="k", delay="1h").result()
    sink = client.sink("jobs", "sink", "cancel")
    with sink.stage(0, 0, 0) as stage:
        stage.write(pa.RecordBatch.from_pydict({"key": ["k"]}))
    published = sink.publish(0, [stage.staged.name])
    # The rows say what became of them, and the next batch may come.
    assert published.outcomes == {"internal": 1}
    assert recoveries(service) == int(late)
    with sink.stage(1, 0, 0) as stage:
        stage.write(pa.RecordBatch.from_pydict({"key": ["nobody"]}))
    sink.publish(1, [stage.staged.name])


def test_schedules_go_on_although_one_target_meets_a_fault(
    service: Service, client: fasti.Client
) -> None:
    fire = service.placement.catalogue.engine._by_kind[Fire]["cron"]

    def fail(work: Work, command: Any) -> Any:
        if command.target == "bad":
            raise ZeroDivisionError("a fault")
        return fire(work, command)

    service.placement.catalogue.engine._by_kind[Fire]["cron"] = fail
    client.create_topic("bad")
    client.create_topic("nightly", kind="cron")
    schedules = client.schedules("nightly")
    schedules.put("a bad one", every="1s", target="bad", payload=b"x")
    schedules.put("a good one", every="1s", target="jobs", payload=b"y")
    with client.consumer("jobs", timeout=60) as consumer:
        messages = iter(consumer)
        for _ in range(2):
            message = next(messages)
            assert message.payload == b"y"
            message.ack()
    assert recoveries(service) == 0
    assert service.placement.catalogue.faults.counts()["Fire", "kept"] >= 1


def divide(*given: Any) -> None:
    """Fails by a fault of the program."""
    1 // 0  # noqa: B018


def test_a_message_that_can_not_be_handed_over_ends_its_consumer(
    service: Service, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fasti.broker.calls.subscription.Subscription._note_delivered", divide)
    client.producer("jobs").send(b"x").result()
    with pytest.raises(InternalError), client.consumer("jobs", timeout=60) as consumer:
        next(iter(consumer))
    assert service.placement.catalogue.faults.counts() == {("consume", "kept"): 1}
    assert recoveries(service) == 0


def test_a_follower_that_can_not_be_told_is_ended(
    service: Service, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("log", kind="log")
    monkeypatch.setattr("fasti.broker.log.follow.LogFollower.pages", lambda _: 1 // 0)
    with pytest.raises(InternalError):
        next(iter(client.reader("log", follow=True, timeout=60)))
    assert service.placement.catalogue.faults.counts() == {("follow", "kept"): 1}


def test_a_receipt_that_can_not_be_told_is_not_asked_for_again(
    service: Service, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fasti.broker.calls.intake.outcomes.encode", lambda _: 1 // 0)
    with pytest.raises(InternalError):
        client.producer("jobs").send(b"x").result()
    assert service.placement.catalogue.faults.counts() == {("produce", "kept"): 1}
