"""The command as a real process against a real broker: exit codes, pipes, signals, streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.exits import BROKEN_PIPE, ERROR_EXITS, TERMINATED
from tests.integration.serve_rig import SEGMENTS
from tests.unit.cli.rig import Answer, run_here


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SEGMENTS) as started:
        yield started


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name: str = request.node.name
    with fasti.connect(broker.address) as client:
        client.create_topic(name)
    return name


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {**os.environ, "FASTI_ADDRESS": broker.address, "COLUMNS": "120"}


def run(
    broker: BrokerProcess, *arguments: str, stdin: bytes = b"", shell: str = ""
) -> subprocess.CompletedProcess[bytes]:
    command: list[str] | str = [sys.executable, "-m", "fasti", *arguments]
    if shell:
        command = shell.replace("fasti ", f"{sys.executable} -m fasti ")
    return subprocess.run(
        command,
        shell=bool(shell),
        executable="/bin/bash" if shell else None,
        input=stdin,
        capture_output=True,
        env=environment(broker),
        timeout=150,
        check=False,
    )


def ask(broker: BrokerProcess, *arguments: str, stdin: str | None = None) -> Answer:
    """The same without a process, for what another process would not change."""
    return run_here(*arguments, stdin=stdin, FASTI_ADDRESS=broker.address)


def counts(broker: BrokerProcess, topic: str) -> dict[str, int]:
    with fasti.connect(broker.address) as client:
        return {state: n for state, n in client.topic(topic).counts.items() if n}


def test_from_one_pipe_to_another(broker: BrokerProcess, topic: str) -> None:
    # In order, so on one shard.
    topic += "-alone"
    with fasti.connect(broker.address) as client:
        client.create_topic(topic, partitions=1)
    lines = b"".join(b"line %d\n" % number for number in range(7_000))
    sent = run(broker, "produce", topic, stdin=lines)
    assert (sent.returncode, sent.stderr) == (0, b"")
    assert sent.stdout == b"7,000 messages sent\n"
    got = run(broker, "consume", topic)
    assert (got.returncode, got.stderr) == (0, b"")
    assert got.stdout == lines
    assert counts(broker, topic) == {"done": 7_000}


def test_a_reader_that_has_enough(broker: BrokerProcess, topic: str) -> None:
    with fasti.connect(broker.address) as client, client.producer(topic) as producer:
        producer.send_batch([b"%d %s" % (n, b"x" * 1_000) for n in range(2_000)])
    done = run(
        broker, shell=f"fasti consume {topic} | head -n 3 | cut -c -2; echo ${{PIPESTATUS[0]}}"
    )
    assert done.stdout.decode().split() == ["0", "1", "2", str(BROKEN_PIPE)]
    assert done.stderr == b""
    # What was not printed is ready again, and what was printed is done.
    found = counts(broker, topic)
    assert set(found) == {"ready", "done"}
    assert sum(found.values()) == 2_000


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, TERMINATED)], ids=["int", "term"]
)
def test_following_until_a_signal_comes(
    broker: BrokerProcess, topic: str, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "fasti", "consume", topic, "--follow", "--no-ack"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(broker),
        # What a shell starts with `&` ignores Ctrl-C, and so would its children: these tests as well.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        with fasti.connect(broker.address) as client, client.producer(topic) as producer:
            for text in (b"one", b"two"):
                producer.send(text, delay="20ms").result(timeout="60s")
                assert following.stdout.readline() == text + b"\n"
        following.send_signal(number)
        said = following.stderr.read()
        assert following.wait(60) == code, said
        # A warning may be there, on a machine that is very busy; a failure may not.
        assert b"Traceback" not in said
        assert b"error " not in said
    # Given back, and not counted as an attempt.
    with fasti.connect(broker.address) as client:
        rows = client.messages(topic).list().to_pylist()
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * 2, rows


def test_lines_are_sent_while_the_pipe_is_open(broker: BrokerProcess, topic: str) -> None:
    command = [sys.executable, "-m", "fasti", "produce", topic, "--quiet"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(broker)
    ) as producing:
        assert producing.stdin is not None
        with fasti.connect(broker.address) as client:
            consumer = client.consumer(topic, timeout="60s")
            for text in (b"first", b"second"):
                producing.stdin.write(text + b"\n")
                producing.stdin.flush()
                message = next(consumer)
                assert message.payload == text
                message.ack()
            consumer.close()
        out, _ = producing.communicate(timeout=60)
    assert producing.returncode == 0
    assert len(out.split()) == 2


def test_no_broker_is_one_line_and_a_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fasti", "topics", "list", "--address", "fasti://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, timeout=150, check=False)
    assert done.returncode == ERROR_EXITS["unavailable"]
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("error unavailable: ")
    assert "fasti serve" in line


def test_a_directory_without_a_server(tmp_path: Path, broker: BrokerProcess) -> None:
    place = ["--address", f"embedded:{tmp_path / 'data'}"]
    assert run(broker, "produce", "emails", "hello", "--create", *place).returncode == 0
    assert run(broker, "consume", "emails", *place).stdout == b"hello\n"
    locked = run(broker, "topics", "list", "--address", f"embedded:{broker.data}")
    assert locked.returncode == ERROR_EXITS["locked"]


def complete(broker: BrokerProcess, line: str, **env: str) -> list[str]:
    """What bash would offer."""
    words = line.split(" ")
    asked = {
        "_FASTI_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fasti"))],
        capture_output=True,
        env={**environment(broker), **asked, **env},
        timeout=150,
        check=False,
    )
    assert done.stderr == b""
    return done.stdout.decode().split()


def test_the_shell_completes_names(broker: BrokerProcess, topic: str) -> None:
    assert "topics" in complete(broker, "fasti to")
    assert topic in complete(broker, "fasti consume test_the_shell")
    nobody = {"FASTI_ADDRESS": "fasti://127.0.0.1:1"}
    assert complete(broker, "fasti consume test_the_shell", **nobody) == []


def test_what_is_known_of_a_message_that_came_back(broker: BrokerProcess, topic: str) -> None:
    with fasti.connect(broker.address) as client:
        id = client.producer(topic).send(b"a").result(60).id
        with client.consumer(topic, name="printer-1") as consumer:
            message = next(consumer)
            (leased,) = ask(broker, "messages", "get", topic, "--id", str(id), "--json").json
            message.nack("out of paper", wait=True)
    assert (leased["state"], leased["consumer"]) == ("leased", "printer-1")
    assert leased["leased"] < leased["lease_until"]
    got = ask(broker, "messages", "get", topic, "--id", str(id))
    assert got.code == 0
    assert "out of paper" in got.out
    assert "out of paper" in ask(broker, "messages", "list", topic).out


_HANGS = """
import sys, threading, fasti
with fasti.connect(sys.argv[1]) as client, client.consumer(sys.argv[2], name="hangs") as consumer:
    print(next(iter(consumer)).id, flush=True)
    threading.Event().wait()
"""


def test_what_a_killed_worker_has_is_taken_back(broker: BrokerProcess, topic: str) -> None:
    """As an operator does it: who has it, what has it, take it back; another gets it at once."""
    with fasti.connect(broker.address) as client:
        client.change_topic(topic, lease="12h")
        sent = client.producer(topic).send(b"work", key="job-1").result(60)
        worker = subprocess.Popen(
            [sys.executable, "-c", _HANGS, broker.address, topic], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"%d\n" % sent.id
        (alive,) = ask(broker, "consumers", "--topic", topic, "--json").json
        assert (alive["consumer"], alive["connected"], alive["leases"]) == ("hangs", True, 1)
        assert alive["peer"].startswith("127.0.0.1:")
        worker.kill()
        worker.wait()
        worker.stdout.close()
        while client.consumers(topic)[0].connected:
            # The broker hears of it from the system.
            client.messages(topic).count()
        assert "(gone)" in ask(broker, "consumers", "--topic", topic).out
        held = ask(broker, "messages", "list", topic, "--consumer", "hangs", "--json")
        assert held.json["key"] == "job-1"
        released = ask(broker, "consumers", "release", "hangs", "--topic", topic, "--yes")
        assert (released.code, released.out) == (0, "hangs: 1 released\n")
        with client.consumer(topic, timeout="60s") as consumer:
            message = next(iter(consumer))
            assert (message.key, message.attempts) == ("job-1", 1)
            message.ack(wait=True)
        assert ask(broker, "consumers", "release", "hangs").code == 1


def test_a_list_of_any_number_is_lines(broker: BrokerProcess, topic: str) -> None:
    """Who reads has the first before the last is there, and may leave."""
    with fasti.connect(broker.address) as client:
        client.producer(topic).send_batch([b"x"] * 30_000, delay=3600)
        client.producer(topic).send(b"y", key="cart-1", delay="1h").result(60)
    first = run(broker, shell=f"set -o pipefail; fasti messages list {topic} --json | head -n 2")
    assert first.returncode == BROKEN_PIPE
    assert [json.loads(line)["id"] for line in first.stdout.splitlines()] == [1, 2]
    every = ask(broker, "messages", "list", topic, "--json").out.splitlines()
    assert len(every) == 30_001
    moved = ask(broker, "messages", "move", topic, "--all", "--by", "1h", "--yes", "--json")
    assert moved.json["outcomes"] == {"ok": 30_001}
    asked = ask(broker, "messages", "cancel", topic, "--key-prefix", "cart-")
    assert asked.code == 1
    assert "Cancel 1 message of" in asked.err
    done = run(broker, "messages", "cancel", topic, "--key-prefix", "cart-", stdin=b"y\n")
    assert (done.returncode, done.stdout.strip()) == (0, b"cancel: 1 ok")
    assert counts(broker, topic) == {"scheduled": 30_000, "cancelled": 1}


def test_a_message_that_nobody_begins_in_time(broker: BrokerProcess, topic: str) -> None:
    sent = ask(broker, "produce", topic, "code", "--delay", "1h", "--expires", "10m", "-q")
    assert (sent.code, sent.err) == (0, "")
    until = ask(broker, "produce", topic, "late", "--expires", "2020-01-01T00:00Z", "-q")
    assert until.code == 0
    (pending,) = ask(broker, "messages", "get", topic, "--id", sent.out, "--json").json
    assert pending["expires"] > pending["due"]
    assert "expired" in ask(broker, "dead", "list", topic).out
    assert ask(broker, "produce", topic, "x", "--expires", "soon").code == 2


def test_a_topic_is_paused_and_resumed(broker: BrokerProcess, topic: str) -> None:
    assert "paused" in ask(broker, "topics", "pause", topic).out
    assert "already" in ask(broker, "topics", "pause", topic).out
    assert "is paused" in ask(broker, "topics", "describe", topic).out
    assert ask(broker, "topics", "resume", topic, "--json").json["paused"] is False
