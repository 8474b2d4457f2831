"""The broker's process: starting, being killed, stopping, and refusing to start."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pyarrow.flight as fl
import pytest

from fasti.broker.launch import BrokerProcess
from fasti.errors import (
    AlreadyExists,
    Corruption,
    DataDirLocked,
    InvalidArgument,
    Unavailable,
)
from fasti.storage.files import LocalFiles
from fasti.storage.tools.inspect import stats
from tests.conformance.protocol_client import Client, Refused, rows
from tests.integration.serve_rig import SMALL, WAIT_S, Watched, children, client_of


def send(broker: BrokerProcess, *payloads: bytes) -> None:
    with client_of(broker) as client:
        client.call("create_topic", {"topic": "t", "settings": {}})
        client.send("t", rows(payload=list(payloads), delay_us=[10**12] * len(payloads)))


def payloads(broker: BrokerProcess) -> list[bytes]:
    with client_of(broker) as client:
        return [row["payload"] for row in client.list("t", payload=True)]


@pytest.mark.one_shard
def test_what_was_answered_survives_a_kill_and_the_port_stays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        address, pid = broker.address, broker.pid
        assert address.startswith("fasti://127.0.0.1:")
        send(broker, b"one", b"two")
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.address == address
        assert broker.pid != pid
        assert payloads(broker) == [b"one", b"two"]
        assert "recovered" in broker.log()
        assert "topics=1 messages=2" in broker.log()


def test_a_port_is_kept_for_a_broker_that_is_away(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, http="127.0.0.1:0", settings=SMALL) as broker:
        address, http = broker.address, broker.http
        assert http is not None
        (child,) = children(broker.pid)
        ended = Watched(child)
        broker.kill()
        ended.wait()
        for port in (broker.port, int(http.rpartition(":")[2])):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((broker.host, port))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, port))
        broker.start()
        assert (broker.address, broker.http) == (address, http)


@pytest.mark.one_shard
def test_sigterm_writes_a_checkpoint_and_exits_with_0(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        send(broker, b"one")
        assert broker.stop() == 0
        words = ["starting", "recovered", "ready", "stopping", "stopped"]
        places = [broker.log().find(f" {word} ") for word in words[:-1]]
        assert places == sorted(places)
        assert places[0] >= 0
        assert broker.log().rstrip().endswith("stopped")
        held = stats(LocalFiles(tmp_path), time.time_ns() // 1000)
        assert held.replayed_frames == 0
        assert held.block_rows == 1
        broker.start()
        assert payloads(broker) == [b"one"]
        broker.restart()
        assert payloads(broker) == [b"one"]


@pytest.mark.one_shard
def test_sessions_are_told_and_idle_streams_dont_hold_up_the_end(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker, client_of(broker) as client:
        send(broker, b"one")
        session = client.consume("t", "worker")
        session.ask("clock")
        stream = client.produce(rows(payload=[b"x"]).schema, topic="t")
        assert "error" not in stream.ask(rows(payload=[b"x"]))
        os.kill(broker.pid, signal.SIGTERM)
        told = session.expect(lambda chunk: chunk.kind == "error")
        assert told.metadata["error"]["code"] == "closed"
        # By the service, or by gRPC, which takes no more calls.
        refusals = (Refused, fl.FlightUnavailableError, fl.FlightCancelledError)
        with pytest.raises(refusals, match=r"unavailable|CANCELLED"):
            client.call("count", {"topic": "t"})
        # Neither stream is ended by its client, and the broker still ends as it should.
        assert broker.wait(WAIT_S) == 0


@pytest.mark.one_shard
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker, client_of(broker) as client:
        send(broker, b"one")
        session = client.consume("t", "worker")
        session.ask("clock")
        os.kill(broker.pid, signal.SIGTERM)
        # The broker is stopping now, and waits a while for this session to end.
        session.expect(lambda chunk: chunk.kind == "error")
        os.kill(broker.pid, signal.SIGINT)
        assert broker.wait(WAIT_S) == 128 + signal.SIGINT
        broker.start()
        assert payloads(broker) == [b"one"]


@pytest.mark.one_shard
def test_stopping_has_a_bound_beyond_which_nothing_is_lost(tmp_path: Path) -> None:
    settings = {**SMALL, "stop_within": "1ms"}
    with BrokerProcess(tmp_path, settings=settings) as broker, client_of(broker) as client:
        send(broker, b"one")
        session = client.consume("t", "worker")
        session.ask("clock")
        # The session is left open, which alone takes longer than the bound.
        assert broker.stop() == 0
        assert "not done in time" in broker.log()
        broker.start()
        assert payloads(broker) == [b"one"]


def test_ctrl_c_is_a_soft_end_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        os.kill(broker.pid, signal.SIGINT)
        assert broker.wait(WAIT_S) == 0


@pytest.mark.one_shard
def test_a_paused_broker_goes_on_where_it_was_and_can_be_stopped_paused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        send(broker, b"one")
        broker.pause()
        broker.resume()
        assert payloads(broker) == [b"one"]
        broker.pause()
        assert broker.stop() == 0


def test_a_locked_directory_is_told_with_its_holder(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        with pytest.raises(DataDirLocked) as refused:
            BrokerProcess(tmp_path, settings=SMALL)
        assert f"process {broker.pid}" in refused.value.message


@pytest.mark.parametrize("key", ["listen", "http"])
def test_a_port_in_use_is_told(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AlreadyExists) as refused:
            BrokerProcess(tmp_path, settings=SMALL, **{key: address})  # type: ignore[arg-type]
        assert refused.value.message == f"{address} is in use by another process"


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("this is no certificate")
    (tmp_path / "key").write_text("and no key")
    (tmp_path / "key").chmod(0o600)
    tls = {"tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key"}
    with pytest.raises(InvalidArgument, match="not a certificate and its key"):
        BrokerProcess(tmp_path / "data", settings={**SMALL, **tls})


@pytest.mark.one_shard
def test_damaged_data_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        broker.stop()
        (tmp_path / "blocks" / "MANIFEST").write_bytes(b"nonsense")
        with pytest.raises(Corruption):
            broker.start()


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fasti", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **env},
        check=False,
    )


def test_a_refusal_to_start_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    done = run("--data", str(path / "below"), "--listen", "127.0.0.1:0", "--http", "off")
    assert done.returncode == 32
    told = [line for line in done.stderr.splitlines() if "info" not in line]
    assert len(told) == 1
    assert told[0].startswith("error storage_failed:")
    assert done.stdout == ""


def test_the_logs_for_programs_are_objects_and_the_banner_is_for_people(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fasti", "serve", "--log-format", "json"]
    command += ["--listen", "127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "d")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        banner = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    ready = next(line for line in lines if line["message"] == "ready")
    assert f"fasti://{ready['listen']}" in banner
    assert ready["level"] == "info"
    starting = next(line for line in lines if line["message"] == "starting")
    assert starting["data"] == str(tmp_path / "d")


_STARTER = """
import os, signal, sys
from fasti.broker.launch import BrokerProcess
broker = BrokerProcess(sys.argv[1], http="127.0.0.1:0")
print(broker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_whose_starter_was_killed_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        with suppress(ProcessLookupError):  # It may have ended already.
            Watched(pid).wait()
    assert starter.returncode == -signal.SIGKILL


# A broker whose disk fails for good as soon as a file named BROKEN lies beside its data.
_ON_A_BAD_DISK = """
import os, pathlib, sys
import fasti.storage.directory as directory
import fasti.storage.files.disk as files
from fasti.cli.main import app
from fasti.errors import Corruption

broken = pathlib.Path(sys.argv[1]).exists
sync = files._sync_data

def bad_sync(descriptor):
    if broken():
        raise OSError(5, "the cable is loose")
    sync(descriptor)

class BadFiles(files.LocalFiles):
    def list(self, prefix):
        if broken():
            raise Corruption("the disk is gone", file="x", offset=0)
        return super().list(prefix)

files._sync_data = bad_sync
directory.LocalFiles = BadFiles
app(["serve", *sys.argv[2:]])
"""


def test_a_shard_that_fails_for_good_ends_the_process_with_its_error(tmp_path: Path) -> None:
    broken, data = tmp_path / "BROKEN", tmp_path / "data"
    readable, writable = os.pipe()
    arguments = ["--data", str(data), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", _ON_A_BAD_DISK, broken, *arguments, "--ready-fd", str(writable)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[writable],
        text=True,
    ) as process:
        os.close(writable)
        with os.fdopen(readable) as pipe:
            assert select.select([pipe], [], [], WAIT_S)[0]
            ready = json.loads(pipe.readline())
        assert ready["pid"] == process.pid
        with Client(ready["listen"]) as client:
            client.call("create_topic", {"topic": "t", "settings": {}})
            broken.touch()
            with pytest.raises(Refused) as refused:
                client.call("create_topic", {"topic": "u", "settings": {}})
            assert refused.value.code == "unknown"
        _, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == 33, told
    assert told.rstrip().splitlines()[-1] == "error corruption: the disk is gone"


def test_a_launcher_tells_what_the_broker_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        BrokerProcess(tmp_path, listen="0.0.0.0:0", settings=SMALL)
    assert "insecure" in refused.value.message
    with BrokerProcess(tmp_path, started=False) as broker:
        assert not broker.running
        with pytest.raises(Unavailable):
            broker.kill()
        assert broker.stop() == 0


def test_settings_of_a_shell_are_not_the_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTI_LOG_LEVEL", "nonsense")
    monkeypatch.setenv("FASTI_CONFIG", "nowhere.toml")
    with BrokerProcess(tmp_path, settings=SMALL, env={"FASTI_LOG_FORMAT": "json"}) as broker:
        assert broker.log().startswith("{")


@pytest.mark.skipif(find_spec("pandas") is None, reason="there is no pandas")
def test_arrow_in_a_broker_doesnt_load_pandas(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        loaded = Path(f"/proc/{broker.pid}/maps").read_text()
    assert "pyarrow" in loaded
    assert "pandas" not in loaded
