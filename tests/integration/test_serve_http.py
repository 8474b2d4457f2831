"""The HTTP port: health, readiness, metrics, and the process behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import rows
from tests.integration.serve_rig import SMALL, WAIT_S, Watched, ask, children, client_of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("http")
    with BrokerProcess(data, http="127.0.0.1:0", settings=SMALL) as process:
        yield process


def test_health_and_readiness(broker: BrokerProcess) -> None:
    for path in ("/healthz", "/readyz"):
        answer = ask(broker, path)
        assert answer.status == 200
        assert answer.json() == {"ready": True, "state": "serving"}


def test_the_root_names_what_there_is(broker: BrokerProcess) -> None:
    paths = ask(broker, "/").json()["paths"]
    assert {"/healthz", "/readyz", "/metrics"} <= set(paths)
    for path in paths:
        assert ask(broker, path).status == 200, path


@pytest.mark.one_shard
def test_metrics_show_what_happened(broker: BrokerProcess) -> None:
    with client_of(broker) as client:
        client.call("create_topic", {"topic": "m", "settings": {}})
        client.send("m", rows(payload=[b"x"] * 3))
        session = client.consume("m", "worker")
        session.credit(1)
        leased = session.expect(lambda chunk: chunk.kind == "leased")
        answer = ask(broker, "/metrics")
        session.cancel()
    assert len(leased.rows) == 1
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["fasti_mutations_total", "m", "ok", "produce"] == 3
    assert samples["fasti_messages", "leased", "m"] == 1
    assert samples["fasti_messages", "m", "ready"] == 2
    assert samples["fasti_delivered_messages_total", "m"] == 1
    assert samples["fasti_leases",] == 1
    assert samples["fasti_sessions",] == 1
    assert samples["fasti_up",] == 1
    assert samples["process_resident_memory_bytes",] > 10_000_000
    assert samples["process_cpu_seconds_total",] > 0


def test_refusals_are_problem_details(broker: BrokerProcess) -> None:
    answer = ask(broker, "/nothing")
    assert answer.status == 404
    assert answer.kind == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == problem["title"] == "not_found"
    assert problem["status"] == 404


def test_a_broker_that_does_not_answer_is_neither_healthy_nor_ready(broker: BrokerProcess) -> None:
    broker.pause()
    try:
        answer = ask(broker, "/readyz")
    finally:
        broker.resume()
    assert answer.status == 503
    assert answer.kind == "application/problem+json"
    # Its connection may still have been in the making when it was paused.
    assert answer.json()["code"] in ("timed_out", "unavailable")
    with client_of(broker) as client:
        client.call("clock")
    assert ask(broker, "/readyz").status == 200


@pytest.mark.one_shard
def test_a_stopping_broker_is_not_ready(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, http="127.0.0.1:0", settings=SMALL) as broker:
        assert ask(broker, "/readyz").status == 200
        with client_of(broker) as client:
            client.call("create_topic", {"topic": "t", "settings": {}})
            session = client.consume("t", "worker")
            session.ask("clock")
            os.kill(broker.pid, signal.SIGTERM)
            session.expect(lambda chunk: chunk.kind == "error")
            answer = ask(broker, "/readyz")
            assert answer.status == 503
            assert answer.json()["code"] == "unavailable"
            assert broker.wait(WAIT_S) == 0


def test_the_http_process_is_replaced_when_it_dies_and_callers_just_wait(
    broker: BrokerProcess,
) -> None:
    assert ask(broker, "/healthz").status == 200
    (child,) = children(broker.pid)
    os.kill(child, signal.SIGKILL)
    # The port never closes: whoever comes meanwhile is served by the next process.
    assert ask(broker, "/healthz").status == 200
    (other,) = children(broker.pid)
    assert other != child
    assert "will be started again" in broker.log()


def test_the_http_process_ends_with_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, http="127.0.0.1:0", settings=SMALL) as broker:
        assert ask(broker, "/healthz").status == 200
        address = broker.http
        (child,) = children(broker.pid)
        watched = Watched(child)
        broker.kill()
        watched.wait()
        broker.start()
        assert broker.http == address
        assert ask(broker, "/readyz").status == 200
        (child,) = children(broker.pid)
        watched = Watched(child)
        assert broker.stop() == 0
        watched.wait()
