"""NATS servers that are started after their brokers: these wait, unless waiting would change nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.doors.nats_wait import NatsWait
from fasti.errors import InvalidArgument, TimedOut, Unauthenticated, Unavailable
from tests.cluster.cluster_rig import SMALL
from tests.cluster.nats_rig import NatsServers, wait_until


@pytest.fixture
def late() -> Iterator[NatsServers]:
    """One server, which is not started yet."""
    servers = NatsServers(1, started=False)
    try:
        yield servers
    finally:
        servers.close()


def settings_for(servers: NatsServers) -> dict[str, str]:
    return {
        **SMALL,
        "cluster": "late",
        "nats": ",".join(servers.urls),
        "nats_replicas": "1",
        "nats_system_credentials": str(servers.system_credentials),
        "shards": "2",
    }


def test_a_broker_that_starts_first_waits_for_nats_and_then_serves(
    late: NatsServers, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "b0", settings=settings_for(late), started=False)
    try:
        starting = threading.Thread(target=broker.start)
        starting.start()
        wait_until(lambda: "waiting for NATS" in broker.log(), "a broker that waits")
        assert late.urls[0] in broker.log()
        late.start(0)
        starting.join()
        assert "NATS has answered" in broker.log()
        with fasti.connect(broker.address, timeout="30s") as client:
            client.create_topic("t")
            assert client.producer("t").send_batch([b"one"]).all_ok
        # A cluster has the number of shards that it was made with: nobody waits for another one.
        other = {**settings_for(late), "shards": "3", "nats_wait": "1h"}
        with pytest.raises(InvalidArgument, match="made with 2 shards"):
            BrokerProcess(tmp_path / "b1", settings=other)
        wrong = tmp_path / "wrong.txt"
        wrong.write_text("nobody:nothing\n")
        other = {**settings_for(late), "nats_credentials": str(wrong), "nats_wait": "1h"}
        with pytest.raises(Unauthenticated, match="refuses these credentials"):
            BrokerProcess(tmp_path / "b2", settings=other)
        other = {**settings_for(late), "cluster": "copies", "nats_replicas": "3", "nats_wait": "1h"}
        with pytest.raises(InvalidArgument, match="replicas > 1"):
            BrokerProcess(tmp_path / "b3", settings=other)
    finally:
        broker.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_broker_that_waits_at_once(
    late: NatsServers, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "fasti", "serve", "--data", str(tmp_path / "b0")]
    command += ["--listen", "127.0.0.1:0", "--http", "off", "--nats-wait", "1h"]
    command += ["--cluster", "late", "--nats", late.urls[0]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "waiting for NATS" in line)
        assert "no NATS server answers" in said
        process.send_signal(number)
        assert process.wait() == 0
        assert number.name in process.stderr.read()


def test_what_may_pass_is_tried_again_and_nothing_else() -> None:
    answers = iter([Unavailable("no leader yet"), TimedOut("no answer"), "there"])

    def step() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert NatsWait(60).insist("a step", step) == "there"
    answers = iter([InvalidArgument("never")])
    with pytest.raises(InvalidArgument, match="never"):
        NatsWait(60).insist("a step", step)
    answers = iter([TimedOut("no answer")])
    with pytest.raises(Unavailable, match=r"within 0 s: a step failed, 1 tries.*: no answer"):
        NatsWait(0).insist("a step", step)
