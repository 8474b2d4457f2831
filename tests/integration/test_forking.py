"""Servers that fork: the parent has a client, its children use it, or one of their own.

Each story runs in a process of its own, which forks and says how its children ended. A child that
hangs is ended by its alarm, which the test sees.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SEGMENTS

PRELUDE = """
import os, signal, sys, threading
import fasti

PATIENCE_S = 60
address = sys.argv[1]


def forked(work, *given):
    "A child that does it, and may not hang."
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_S)
        code = 1
        try:
            work(*given)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            # As a server's worker does: what was registered to happen at the end happens.
            if code == 0:
                sys.exit(0)
            os._exit(code)
    return pid


def ended_well(pids):
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * len(pids), codes
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("forking")
    with BrokerProcess(data, settings=SEGMENTS) as found:
        yield found


def tell(story: str, address: str, cwd: Path) -> None:
    program = cwd / "story.py"
    program.write_text(PRELUDE + textwrap.dedent(story))
    ran = subprocess.run(
        [sys.executable, str(program), address], capture_output=True, text=True, timeout=180
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_server_that_loads_first_and_forks_then(broker: BrokerProcess, tmp_path: Path) -> None:
    """As gunicorn --preload: the parent connects and sends, its workers send and consume."""
    story = """
    client = fasti.connect(address)
    # A consumer that comes back asks for one message more than it may hold, and keeps it unopened
    # for as long as a lease lasts.
    client.create_topic("loaded", lease="3s")
    producer = client.producer("loaded")
    mine = client.consumer("loaded", name="parent", prefetch=1)
    before = producer.send(b"parent", key="first")
    assert before.result(60).ok
    message = next(mine)

    def work(number):
        assert producer.send(b"child", key=f"inherited-{number}").result(60).ok
        assert client.messages("loaded").count()["leased"] >= 1
        try:
            next(mine)
        except fasti.FastiError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("two processes have one consumer")
        with fasti.connect(address) as own:
            assert own.producer("loaded").send(b"child", key=f"own-{number}").result(60).ok
        with client.consumer("loaded", timeout="60s") as consumer:
            for _ in range(2):
                assert next(consumer).ack(wait=True).ok

    ended_well([forked(work, number) for number in range(3)])
    # The parent goes on: its lease, its consumer and its producer.
    assert message.ack(wait=True, timeout=60).ok
    assert producer.send(b"again", key="last").result(60).ok
    assert next(mine).ack(wait=True, timeout=60).ok
    assert client.messages("loaded").count()["ready"] == 0
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_a_call_that_connects_while_connections_end(broker: BrokerProcess, tmp_path: Path) -> None:
    story = """
    import time
    from fasti.client import forking

    PATIENCE_S = 20
    client = fasti.connect(address)
    (transport,) = forking._alive(forking._state.connections)
    generation = transport._generation
    begun = threading.Event()

    def connect_late():
        with transport._gate:
            begun.set()
            while transport._generation == generation:
                time.sleep(0.001)
            transport._client("produce")

    thread = threading.Thread(target=connect_late)
    thread.start()
    begun.wait()

    def work():
        assert client.health()["state"] == "serving"

    ended_well([forked(work)])
    thread.join()
    assert client.health()["state"] == "serving"
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_an_app_that_is_imported_first(broker: BrokerProcess, tmp_path: Path) -> None:
    """As Celery's prefork: the parent imports the module, its workers call `later`."""
    story = """
    app = fasti.App(address)

    @app.on("imported")
    def remind(number: int) -> None: ...

    def work(number):
        assert remind.later(number, key=f"child-{number}", delay="1h").result(60).ok

    ended_well([forked(work, number) for number in range(3)])
    assert remind.later(9, key="parent", delay="1h").result(60).ok
    ended_well([forked(work, number) for number in range(3, 6)])
    assert app.messages("imported").count()["scheduled"] == 7
    app.close()
    """
    tell(story, broker.address, tmp_path)


def test_nothing_is_lost_or_twice_by_forks_in_the_middle_of_sends(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    story = """
    client = fasti.connect(address)
    client.create_topic("busy")
    producer = client.producer("busy")
    stop = threading.Event()
    sent = []

    def send():
        while not stop.is_set():
            sent.append(producer.send(b"parent", delay="1h"))
            if len(sent) % 500 == 0:
                sent[-1].result(60)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    unanswered = producer.send(b"parent", delay="1h")

    def work():
        try:
            # Either it had its answer before the fork, or the parent gets it.
            assert unanswered.result(60).ok
        except fasti.errors.IllegalTransition as error:
            assert "parent" in str(error)
        receipts = [producer.send(b"child", delay="1h") for _ in range(100)]
        assert all(each.result(60).ok for each in receipts)
        producer.flush(60)

    for _ in range(5):
        ended_well([forked(work)])
    stop.set()
    for thread in threads:
        thread.join()
    assert unanswered.result(60).ok
    assert all(receipt.result(60).ok for receipt in sent)
    assert client.messages("busy").count()["scheduled"] == len(sent) + 1 + 5 * 100
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_readers_go_on_in_the_child_by_themselves(broker: BrokerProcess, tmp_path: Path) -> None:
    story = """
    client = fasti.connect(address)
    client.create_topic("read", kind="log")
    producer = client.producer("read")
    producer.send_batch([b"%d" % n for n in range(10)])
    reader = client.reader("read", follow=True, timeout="60s")
    assert next(reader).payload == b"0"

    def work():
        assert next(reader).payload == b"1"
        assert client.call  # A client's calls have an inbox of their own.
        rows = [next(reader).payload for _ in range(8)]
        assert rows[-1] == b"9"

    ended_well([forked(work)])
    assert next(reader).payload == b"1"
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_a_child_is_told_at_once_if_its_parent_could_not_let_go(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("long", kind="log")
        client.producer("long").send_batch([b"x" * 1000] * 60_000)
    story = """
    client = fasti.connect(address)
    # Somebody is in the middle of a long answer.
    rows = client.reader("long").batches() if hasattr(fasti.Reader, "batches") else None
    scan = client.transport.read(client.transport.plan({"call": "log", "topic": "long"})[0])
    next(scan)

    def work():
        for ask in (client.topics, lambda: fasti.connect(address)):
            try:
                ask()
            except fasti.errors.IllegalTransition as error:
                assert "connect in the child alone" in str(error)
            else:
                raise AssertionError("gRPC can't have survived that")

    ended_well([forked(work)])
    assert next(scan).num_rows
    assert client.topics()
    client.close()
    """
    tell(story, broker.address, tmp_path)


def test_an_embedded_broker_stays_where_it_is(tmp_path: Path) -> None:
    story = """
    client = fasti.connect(address)
    client.create_topic("here")
    producer = client.producer("here")
    producer.send(b"parent").result(60)

    def work():
        for ask in (client.topics, lambda: producer.send(b"child").result(60)):
            try:
                ask()
            except fasti.errors.IllegalTransition as error:
                assert "embedded broker" in str(error)
            else:
                raise AssertionError("two processes have one directory")

    ended_well([forked(work)])
    assert producer.send(b"parent").result(60).ok
    assert client.messages("here").count()["ready"] == 2
    client.close()
    """
    tell(story, f"embedded:{tmp_path / 'data'}", tmp_path)


def test_an_asyncio_client_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    story = """
    import asyncio
    import fasti.aio

    async def main():
        client = await fasti.aio.connect(address)
        await client.create_topic("looped")
        producer = client.producer("looped")

        def work():
            async def ask():
                await client.topics()

            try:
                asyncio.run(ask())
            except fasti.errors.IllegalTransition as error:
                assert "forked" in str(error)
            else:
                raise AssertionError("its threads are not here")
            async def anew():
                async with fasti.aio.connect(address) as own:
                    receipt = await own.producer("looped").send(b"child")
                    assert (await receipt).ok
            asyncio.run(anew())

        pid = forked(lambda: threading_run(work))
        ended_well([pid])
        assert (await (await producer.send(b"parent"))).ok
        await client.close()

    def threading_run(work):
        # The loop that the child inherited runs, as far as it knows: another thread has none.
        failed = []
        def run():
            try:
                work()
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        os._exit(0)

    asyncio.run(main())
    """
    tell(story, broker.address, tmp_path)


def test_a_process_that_forks_between_two_small_calls(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Their stream is open at the fork, and one more call is under way in another thread."""
    story = """
    from fasti.client import forking

    client = fasti.connect(address)
    client.create_topic("small")
    keys = [f"k{number}" for number in range(400)]
    client.producer("small").send_batch([b"x"] * 400, key=keys, delay="1h")
    messages = client.messages("small")
    (transport,) = forking._alive(forking._state.connections)
    while not transport._call_streams._idle:
        messages.count()

    stop = threading.Event()
    counted = []

    def count_on():
        while not stop.is_set():
            counted.append(messages.count()["scheduled"])

    thread = threading.Thread(target=count_on)
    thread.start()

    def work(number):
        for key in keys[number * 100 : number * 100 + 50]:
            assert messages.cancel(key=key).ok
        client.close()

    ended_well([forked(work, number) for number in range(3)])
    stop.set()
    thread.join()
    assert counted
    for key in keys[300:]:
        assert messages.cancel(key=key).ok
    assert messages.count()["scheduled"] == 150
    client.close()
    """
    tell(story, broker.address, tmp_path)
