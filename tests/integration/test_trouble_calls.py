"""Requests whose repliers and callers die: real processes, killed in the middle."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import TimedOut
from tests.integration.serve_rig import SEGMENTS

WAIT_S = 60.0

REPLIER = """
import sys, time
import fasti

client = fasti.connect(sys.argv[1])
for message in client.consumer("prices", name=sys.argv[2], prefetch=1):
    print("has it", flush=True)
    if sys.argv[2] == "slow":
        time.sleep(600)
    message.reply(b"from " + sys.argv[2].encode())
"""

CALLER = """
import sys
import fasti

client = fasti.connect(sys.argv[1])
print("calls", flush=True)
client.call("prices", b"?", timeout="10m")
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings=SEGMENTS) as started:
        yield started


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(WAIT_S)
    if process.stdout is not None:
        process.stdout.close()


def test_another_replier_answers_for_one_that_was_killed(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("prices", lease="1s")
        slow = start(REPLIER, broker.address, "slow")
        answers: list[bytes] = []

        def call() -> None:
            answers.append(client.call("prices", b"?", timeout="150s").payload)

        thread = threading.Thread(target=call)
        thread.start()
        assert heard(slow) == "has it"
        kill(slow)
        quick = start(REPLIER, broker.address, "quick")
        thread.join(WAIT_S)
        kill(quick)
        assert answers == [b"from quick"]
        counts = client.messages("prices").count()
        assert (counts["done"], counts["leased"], counts["dead"]) == (1, 0, 0)


def test_a_reply_after_the_call_timed_out_is_dead_with_its_reason(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client, fasti.connect(broker.address) as caller:
        client.create_topic("prices")
        taken = threading.Event()
        outcomes: list[fasti.Outcome] = []
        timed_out = threading.Event()

        def answer() -> None:
            requests = iter(client.consumer("prices"))
            next(requests).reply(b"in time")
            message = next(requests)
            taken.set()
            timed_out.wait(WAIT_S)
            outcomes.append(message.reply(b"too late"))

        thread = threading.Thread(target=answer)
        thread.start()
        # From here on both are connected, and the second request needs next to no time.
        assert caller.call("prices", b"!", timeout="60s").payload == b"in time"
        with pytest.raises(TimedOut) as late:
            caller.call("prices", b"?", timeout="3s")
        assert taken.is_set()
        assert late.value.details["status"] == "leased"
        timed_out.set()
        thread.join(WAIT_S)
        (dead,) = client.messages("_replies").dead(payload=True).to_pylist()
        assert (outcomes[0].status, outcomes[0].id) == ("dead", dead["id"])
        assert dead["payload"] == b"too late"
        assert dead["reason"].startswith("too late: the call had ended")


def test_a_caller_that_was_killed_leaves_an_inbox_that_can_go(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("prices")
        caller = start(CALLER, broker.address)
        assert heard(caller) == "calls"
        message = next(iter(client.consumer("prices")))
        kill(caller)
        (inbox,) = [topic for topic in client.topics() if topic.name.startswith("_inbox.")]
        assert inbox.settings.idle_age_us > 0
        # Nobody reads it any more, but it is there: the answer goes, and the request is done.
        assert message.reply(b"!").ok
        assert client.topic(inbox.name).counts["dead"] == 0
        client.delete_topic(inbox.name)


def test_calls_go_on_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("prices")

        def answer() -> None:
            for message in consumer:
                message.reply(message.payload * 2, wait=False)

        with client.consumer("prices") as consumer:
            thread = threading.Thread(target=answer)
            thread.start()
            assert client.call("prices", b"a", timeout="150s").payload == b"aa"
            broker.kill()
            broker.start()
            assert client.call("prices", b"b", timeout="150s").payload == b"bb"
            consumer.stop()
            thread.join(WAIT_S)


def test_every_call_has_its_own_answer_over_a_kill_of_the_broker(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("prices", partitions=2)
        answers: dict[int, bytes] = {}
        some = threading.Semaphore(0)

        def answer(consumer: fasti.Consumer) -> None:
            for message in consumer:
                message.reply(message.payload * 2, wait=False)

        def call(number: int) -> None:
            for each in range(number, number + 25):
                answers[each] = client.call("prices", b"%d." % each, timeout="150s").payload
                some.release()

        with client.consumer("prices") as one, client.consumer("prices") as two:
            repliers = [threading.Thread(target=answer, args=(each,)) for each in (one, two)]
            callers = [threading.Thread(target=call, args=(n * 25,)) for n in range(8)]
            for thread in (*repliers, *callers):
                thread.start()
            for _ in range(60):
                assert some.acquire(timeout=WAIT_S)
            broker.kill()
            broker.start()
            for thread in callers:
                thread.join(WAIT_S)
            one.stop()
            two.stop()
            for thread in repliers:
                thread.join(WAIT_S)
        assert answers == {n: b"%d.%d." % (n, n) for n in range(200)}
        counts = client.messages("prices").count()
        assert (counts["ready"], counts["leased"], counts["dead"]) == (0, 0, 0)


def test_a_redrive_that_is_cut_off_has_moved_each_message_or_not(tmp_path: Path) -> None:
    rows = 12_000
    with (
        BrokerProcess(tmp_path, settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("dead")
        client.create_topic("other")
        client.producer("dead").send_batch([b"%d" % n for n in range(rows)])
        left = rows
        with client.consumer("dead") as consumer:
            for batch in consumer.batches(rows):
                batch.reject(None, "why")
                left -= len(batch)
                if not left:
                    break

        def cut_off(done: int, total: int) -> None:
            if 0 < done < 6_000:
                broker.kill()
                broker.start()

        dead = client.messages("dead")
        # The second piece may meet a broker that is not there, or a new one.
        with suppress(fasti.FastiError):
            dead.redrive(to="other", progress=cut_off)
        moved = client.messages("other").count()["ready"]
        assert moved >= 5_000
        assert moved + dead.count()["dead"] == rows
        assert dead.redrive(to="other").all_ok
        payloads = client.messages("other").list(limit=None, payload=True).column("payload")
        assert sorted(map(int, payloads.to_pylist())) == list(range(rows))
