"""Failures whose outcome was not read: counted, logged now and then, given to callbacks."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.client import failures as module
from fasti.client.failures import Failure, FailureReports, Failures
from fasti.errors import InvalidArgument, RowsFailed
from fasti.testing.virtual import VirtualBroker


@pytest.fixture
def reports() -> Iterator[FailureReports]:
    found = FailureReports()
    yield found
    found.close()
    assert found._thread is None


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "fasti.client"]


def test_failures_that_are_alike_are_logged_once_and_counted(
    reports: FailureReports, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures("carts", None, reports)
    for number in range(5):
        failures.add("send", [{"status": "conflict", "key": f"cart-{number}", "id": 7}])
    failures.add("ack", [{"status": "stale_lease", "id": 9}])
    assert reports.deliver()
    first, other, rest = lines(caplog)
    assert all(each.levelno == logging.WARNING for each in caplog.records)
    for word in ("send", "'carts'", "conflict", "'cart-0'", "7"):
        assert word in first
    assert "stale_lease" in other
    assert "conflict, 4 more" in rest
    assert (failures.unread, reports.count) == (6, 6)


def test_callbacks_run_in_order_in_one_thread_and_may_raise(
    reports: FailureReports, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[Failure, str]] = []

    def on_failure(failure: Failure) -> None:
        told.append((failure, threading.current_thread().name))
        failures.throw() if failure.key == "0" else None
        raise ValueError("harmless")

    failures = Failures("carts", on_failure, reports)
    failures.add("send", [{"status": "conflict", "key": str(n), "id": 0} for n in range(3)])
    assert reports.deliver()
    assert [each.key for each, _ in told] == ["0", "1", "2"]
    assert told[0][0] == Failure("carts", "send", "conflict", "0")
    assert {name for _, name in told} == {"fasti-failures"}
    assert sum("on_failure raised" in line for line in lines(caplog)) == 3


def test_what_waits_to_be_told_is_bounded(
    reports: FailureReports, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_WAITING_MAX", 10)
    begun, gate, told = threading.Event(), threading.Event(), []

    def on_failure(failure: Failure) -> None:
        begun.set()
        assert gate.wait(20)
        told.append(failure)

    failures = Failures("carts", on_failure, reports)
    failures.add("send", [{"status": "conflict"}])
    assert begun.wait(20)
    failures.add("send", [{"status": "conflict"}] * 100)
    gate.set()
    assert reports.deliver()
    assert (failures.unread, len(told)) == (101, 11)
    assert any("90 more failures" in line for line in lines(caplog))


def test_a_failure_thrown_away_while_the_thread_ends_is_told(reports: FailureReports) -> None:
    told: list[Failure] = []
    failures = Failures("carts", told.append, reports)
    for _ in range(50):
        failures.add("send", [{"status": "conflict"}])
        reports.close()
    assert len(told) == 50


def test_a_callback_is_a_function() -> None:
    with VirtualBroker() as broker, broker.client() as client:
        client.create_topic("carts")
        for make in (client.producer, client.consumer):
            with pytest.raises(InvalidArgument, match="on_failure"):
                make("carts", on_failure="shout")  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="on_failure"):
        fasti.connect("fasti://127.0.0.1:1", on_failure=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="on_failure"):
        fasti.App(on_failure=7)  # type: ignore[arg-type]


def test_one_caller_s_unread_receipt_does_not_lose_another_s_message() -> None:
    told: list[Failure] = []
    with VirtualBroker() as broker, broker.client() as client:
        app = fasti.App(client, on_failure=told.append)

        @app.on("reminders")
        def remind(cart: int) -> None: ...

        remind.later(1, key="cart-7", delay="1h")
        remind.later(1, key="cart-7", delay="1h")
        app.producer("reminders").outbox.flush(20)
        gc.collect()
        assert client.unread_failures == 1
        assert remind.later(2, key="cart-8", delay="1h").result(20).ok
        remind.later(3, key="cart-7", delay="1h", on_conflict="keep")
        with pytest.raises(RowsFailed, match="cart-7"):
            app.close()
        assert [(each.operation, each.status, each.key) for each in told] == [
            ("send", "conflict", "cart-7")
        ]
        assert client.messages("reminders").count()["scheduled"] == 2


def test_an_unread_failure_fails_no_transaction_change_or_iteration() -> None:
    with VirtualBroker() as broker, broker.client() as client:
        client.create_topic("carts")
        producer = client.producer("carts")
        for _ in range(2):
            producer.send(b"", key="a")
        producer.outbox.flush(20)
        gc.collect()
        with client.transaction() as tx:
            tx.send("carts", b"in a transaction", key="b")
        assert client.messages("carts").count()["ready"] == 2
        with client.consumer("carts", timeout=20, prefetch=1) as consumer:
            stale = next(consumer)
            broker.expire_leases()
            stale.ack()
            consumer.session.flush(20)
            assert consumer.unread_failures == 1
            assert next(consumer).ack(wait=True)
            with pytest.raises(RowsFailed):
                consumer.flush(20)
        with pytest.raises(RowsFailed):
            producer.close()


def test_a_program_that_ends_with_unread_failures_ends_quietly(tmp_path: Path) -> None:
    program = """
import sys
import fasti

client = fasti.connect(sys.argv[1])
client.create_topic("carts")
producer = client.producer("carts")
kept = [producer.send(b"", key="k") for _ in range(2)]
producer.flush()
print(kept[1].done)
# Here the interpreter ends, and throws the receipts away.
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, f"embedded:{tmp_path}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n")
    assert "Exception ignored" not in ran.stderr
    assert "Traceback" not in ran.stderr
