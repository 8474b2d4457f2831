"""`fasti serve --processes`: real processes that start, end, die, and are started again."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fasti.broker.launch import BrokerProcess
from fasti.doors.peer_folder import PROCESSES_LOCK, PeerFolder
from fasti.errors import AlreadyExists, DataDirLocked, FastiError, InvalidArgument, Unavailable
from fasti.storage.files import LocalFiles
from tests.conformance.protocol_client import Client, Refused
from tests.integration.serve_rig import WAIT_S, Watched, ask, children
from tests.shards.processes_rig import (
    SETTINGS,
    client_of_process,
    kill_and_wait,
    pids,
    wait_log,
    wait_until,
)

SHARDS, PROCESSES = 4, 2


def several(path: Path, **options: Any) -> BrokerProcess:
    given = {"shards": SHARDS, "processes": PROCESSES, "http": "127.0.0.1:0", "settings": SETTINGS}
    return BrokerProcess(path / "data", **{**given, **options})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """For tests that leave all processes serving."""
    with several(tmp_path_factory.mktemp("several")) as started:
        yield started


def lines(broker: BrokerProcess, message: str) -> list[str]:
    return [line for line in broker.log().splitlines() if message in line]


def test_it_says_once_that_it_is_ready_and_every_process_tells_the_map(
    broker: BrokerProcess,
) -> None:
    (ready,) = re.findall(r"info    ready .*", broker.log())
    assert f"processes={PROCESSES} shards={SHARDS}" in ready
    assert {f"process={number}" for number in range(PROCESSES)} == {
        line.split()[-1] for line in lines(broker, "this process is ready")
    }
    places = [f"{broker.host}:{broker.port + number}" for number in range(PROCESSES)]
    expected = [
        {"shard": shard, "address": places[shard // 2], "epoch": 1} for shard in range(SHARDS)
    ]
    clusters = set()
    for number in range(PROCESSES):
        with client_of_process(broker, number) as client:
            hello = client.call("hello")
        assert (hello["shards"], hello["map"]) == (SHARDS, expected)
        clusters.add(hello["cluster"])
    assert len(clusters) == 1


def test_a_process_tells_where_the_shards_of_the_other_are(broker: BrokerProcess) -> None:
    with client_of_process(broker, 0) as client:
        client.call("topics", {"shard_number": 1})
        with pytest.raises(Refused, match="moved") as refused:
            client.call("topics", {"shard_number": 2})
    where = {"shard": 2, "address": f"{broker.host}:{broker.port + 1}", "epoch": 1}
    assert refused.value.details == where


def test_a_process_that_is_killed_is_started_again_and_the_others_dont_notice(
    broker: BrokerProcess,
) -> None:
    before = pids(broker, PROCESSES)
    failures: list[Exception] = []
    stop = threading.Event()
    calls = threading.Semaphore(0)

    def load() -> None:
        try:
            with client_of_process(broker, 0) as client:
                while not stop.is_set():
                    client.call("topics", {"shard_number": 0})
                    calls.release()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert calls.acquire(timeout=WAIT_S)
        old = kill_and_wait(broker, 1)
        new = broker.process(1).wait(other_than=old)
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert new != before[1]
    assert broker.process(0).pid == before[0]
    with client_of_process(broker, 1) as client:
        client.call("topics", {"shard_number": 2})
    (line,) = lines(broker, "why=SIGKILL again_in_s=0.2 process=1 shards=2-3")
    assert "will be started again" in line


def test_all_are_started_anew_one_after_the_other(broker: BrokerProcess) -> None:
    before = pids(broker, PROCESSES)
    (http,) = set(children(broker.pid)) - set(before)
    watched = Watched(http)
    broker.restart_processes()
    after = [broker.process(n).wait(other_than=pid) for n, pid in enumerate(before)]
    assert not set(before) & set(after)
    # The HTTP process comes last, and reads certificates anew as the others did.
    watched.wait()
    assert ask(broker, "/readyz").status == 200
    log = broker.log()
    rolled = log[log.index("starting the processes anew") :]
    told = re.findall(r"(stopped|this process is ready).* process=(\d)", rolled)
    assert told == [
        (what, str(number))
        for number in range(PROCESSES)
        for what in ("stopped", "this process is ready")
    ]


def test_health_names_the_process_that_does_not_answer(broker: BrokerProcess) -> None:
    assert ask(broker, "/readyz").json()["ready"]
    broker.process(1).pause()
    try:
        answer = ask(broker, "/readyz")
        assert answer.status == 503
        problem = answer.json()
        assert "process 1 (shards 2-3) is not answering" in problem["detail"]
        states = [process["state"] for process in problem["details"]["processes"]]
        assert states == ["serving", "not answering"]
        # A process that hangs is no use: nobody starts it again.
        assert ask(broker, "/healthz").status == 503
    finally:
        broker.process(1).resume()
    assert ask(broker, "/readyz").status == 200
    assert ask(broker, "/healthz").status == 200


def test_one_page_of_metrics_speaks_for_all(broker: BrokerProcess) -> None:
    answer = ask(broker, "/metrics")
    assert answer.status == 200
    families = list(text_string_to_metric_families(answer.body.decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    series = [(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples]
    assert len(set(series)) == len(series)
    by_name = {family.name: family.samples for family in families}
    up = {sample.labels["process"]: sample.value for sample in by_name["fasti_process_up"]}
    assert up == {"0": 1.0, "1": 1.0}
    assert "fasti_process_restarts" in by_name
    for sample in (sample for family in families for sample in family.samples):
        assert "process" in sample.labels or "shard" in sample.labels, sample


def test_a_process_that_ends_again_and_again_is_tried_again_and_health_says_so(
    broker: BrokerProcess,
) -> None:
    before = broker.process(0).pid
    old = kill_and_wait(broker, 1)
    lock = LocalFiles(broker.data / "shard-2").lock()
    try:
        # What it ends with, as often as it is tried.
        log = broker.log
        while sum("code=locked process=1" in line for line in log().splitlines()) < 2:
            broker.process(1).wait_change()
        problem = ask(broker, "/readyz").json()
        assert problem["code"] == "unavailable"
        told = problem["details"]["processes"][1]
        assert told["state"] in ("restarting", "starting", "not answering")
        assert told["restarts"] >= 2
        assert problem["details"]["processes"][0]["ready"]
    finally:
        lock.release()
    assert broker.process(1).wait(other_than=old) != old
    assert broker.process(0).pid == before
    assert ask(broker, "/readyz").status == 200


def test_it_stops_all_softly(tmp_path: Path) -> None:
    with several(tmp_path) as broker:
        # The HTTP process may begin a moment after the broker is ready: one that answers is there.
        assert ask(broker, "/readyz").status == 200
        all_of_them = [Watched(pid) for pid in children(broker.pid)]
        assert len(all_of_them) == PROCESSES + 1
        assert broker.stop() == 0
        for process in all_of_them:
            process.wait()
        assert len(lines(broker, "info    stopped")) == PROCESSES + 1
        # As one process would: nothing is left to wait for.
        address = broker.address
        broker.start()
        assert broker.address == address
        assert not lines(broker, "waiting for processes")


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with several(tmp_path, http="off") as broker:
        all_of_them = [Watched(pid) for pid in pids(broker, PROCESSES)]
        # One that can't stop softly.
        broker.process(1).pause()
        os.kill(broker.pid, signal.SIGTERM)
        wait_log(broker, "stopping because=SIGTERM")
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.wait(WAIT_S) == 128 + signal.SIGTERM
        for process in all_of_them:
            process.wait()


def test_a_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "stop_within": "1s"}
    with several(tmp_path, http="off", settings=settings) as broker:
        watched = Watched(broker.process(1).wait())
        broker.process(1).pause()
        assert broker.stop() == 0
        watched.wait()
        assert lines(broker, "code=SIGKILL")


def test_a_signal_while_it_starts_ends_it(tmp_path: Path) -> None:
    with several(tmp_path, http="off", started=False) as broker:
        stopped = threading.Thread(target=terminate_at, args=(broker, "starting version"))
        stopped.start()
        with pytest.raises(Unavailable, match="ended before it was ready"):
            broker.start()
        stopped.join()
        # Nothing of it is left.
        broker.start()


def terminate_at(broker: BrokerProcess, text: str) -> None:
    wait_log(broker, text)
    os.kill(broker.pid, signal.SIGTERM)


def test_processes_stop_by_themselves_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with several(tmp_path) as broker:
        before = pids(broker, PROCESSES)
        all_of_them = [Watched(pid) for pid in children(broker.pid)]
        broker.kill(supervisor_only=True)
        # The next one waits for them: it finds the ports and the directory free.
        broker.start()
        for process in all_of_them:
            process.wait()
        assert len(lines(broker, "because='end of stdin'")) == PROCESSES
        assert not set(before) & set(pids(broker, PROCESSES))
        assert ask(broker, "/readyz").status == 200


IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "fasti", "serve", *sys.argv[1:]])
"""


def test_a_terminal_that_is_closed_stops_it(tmp_path: Path) -> None:
    flags = ["--data", str(tmp_path / "data"), "--shards", "2", "--processes", "2"]
    flags += ["--listen", "127.0.0.1:0", "--http", "off", "--segment-size", "1MiB"]
    log = tmp_path / "log"
    terminal, inner = pty.openpty()
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *flags],
            stdin=inner,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    os.close(inner)
    wait_until(lambda: "processes=2 shards=2" in log.read_text())
    # While the terminal is there, it is a wish.
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "all processes were started anew" in log.read_text())
    os.close(terminal)
    assert process.wait(WAIT_S) == 0
    assert "stopping because=SIGHUP" in log.read_text()


def test_the_next_supervisor_waits_for_processes_of_the_one_before(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with several(tmp_path, http="off") as broker:
        assert broker.stop() == 0
        folder = PeerFolder(data)
        lock = folder.lock(PROCESSES_LOCK)

        def release() -> None:
            wait_log(broker, "waiting for processes of a supervisor that is gone to stop")
            os.close(lock)

        thread = threading.Thread(target=release)
        thread.start()
        broker.start()
        thread.join()
        folder.close()


def test_there_is_one_supervisor_for_a_directory(tmp_path: Path) -> None:
    with several(tmp_path, http="off") as broker:
        with pytest.raises(DataDirLocked, match="served by other processes"):
            several(tmp_path, http="off")
        assert pids(broker, PROCESSES)


def test_one_that_cant_start_ends_all_with_its_error(tmp_path: Path) -> None:
    several(tmp_path, http="off").close()
    lock = LocalFiles(tmp_path / "data" / "shard-3").lock()
    try:
        with pytest.raises(DataDirLocked, match="shard-3"):
            several(tmp_path, http="off")
    finally:
        lock.release()
    # Nothing of it is left.
    several(tmp_path, http="off").close()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with several(tmp_path, http="off") as first:
        taken = first.port
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken + 1))
        other.listen()
        with pytest.raises(AlreadyExists, match=f"127.0.0.1:{taken + 1} is in use"):
            several(tmp_path, http="off", listen=f"127.0.0.1:{taken}")


@pytest.mark.parametrize(
    ("made", "asked", "reason"),
    [
        ((), {"processes": 2}, "has 1 shard"),
        ((3, 1), {"processes": 4}, "has 3 shards"),
        ((3, 1), {"shards": 4, "processes": 2}, "has 3 shards, not 4"),
    ],
)
def test_more_processes_than_shards(
    tmp_path: Path, made: tuple[int, ...], asked: dict[str, Any], reason: str
) -> None:
    if made:
        several(tmp_path, shards=made[0], processes=made[1], http="off").close()
    options = {"shards": None, "http": "off", **asked}
    with pytest.raises(InvalidArgument, match=reason):
        several(tmp_path, **options)


def test_a_log_in_json_has_the_number_of_the_process(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log_format": "json"}
    with several(tmp_path, http="off", settings=settings) as broker:
        broker.stop()
        said = [json.loads(line) for line in broker.log().splitlines()]
    assert {line.get("process") for line in said} == {None, 0, 1}
    assert [line["message"] for line in said if "process" not in line] == [
        "starting",
        "ready",
        "stopping",
        "stopped",
    ]


def test_memory_is_divided(tmp_path: Path) -> None:
    with several(tmp_path, shards=3) as broker:
        page = ask(broker, "/metrics").body.decode()
    budgets: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        if family.name == "fasti_memory_budget_bytes":
            budgets = {sample.labels["shard"]: sample.value for sample in family.samples}
    whole = 128 << 20
    # Each process lends its part to its shards.
    assert budgets == {"0": whole * 2 // 3 // 2, "1": whole * 2 // 3 // 2, "2": whole // 3}


def test_a_clean_failure_of_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    broker = several(tmp_path, started=False, settings={**SETTINGS, "credentials": "/nowhere"})
    with pytest.raises(FastiError, match="No such file"):
        broker.start()
    broker.close()


def test_a_client_of_the_first_address_needs_no_other(broker: BrokerProcess) -> None:
    with Client(f"{broker.host}:{broker.port}") as client:
        made = client.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        assert made["settings"]["partitions"] == SHARDS
