"""Workers that change things of their own, one call after the other, while brokers are killed.

So each knows what an answer must be. A change that happened a second time, or that happened and was answered
as if it had not, is another outcome: `conflict` of a compare-and-set, `cancelled` of a cancel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import fasti
from fasti import aio
from tests.integration.serve_rig import WAIT_S

KILLS = 3
# Calls that are answered between two kills, of each worker.
CALLS = 15


class Pace:
    """Workers go on until the last kill is over; a kill comes when all have had answers since the last."""

    def __init__(self, workers: int) -> None:
        self._changed = threading.Condition()
        self._answers = [0] * workers
        self._ended = False

    def is_on(self, worker: int) -> bool:
        """Whether to make one more call; the one before was answered."""
        with self._changed:
            self._answers[worker] += 1
            self._changed.notify_all()
            return not self._ended

    def await_answers(self) -> None:
        with self._changed:
            wanted = [answers + CALLS for answers in self._answers]
            done = self._changed.wait_for(lambda: self._have(wanted), WAIT_S)
            assert done or self._ended, "all get answers"

    def _have(self, wanted: list[int]) -> bool:
        return self._ended or all(a >= w for a, w in zip(self._answers, wanted, strict=True))

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def count_up(client: fasti.Client, number: int, pace: Pace) -> None:
    """By compare-and-set: each increment happens once, or the next one is a conflict."""
    entries, key, count, version = client.kv("counters"), f"count-{number}", 0, 0
    while pace.is_on(number):
        outcome = entries.put(key, b"%d" % (count + 1), version=version)
        assert outcome.status == "ok", (outcome, count)
        count, version = count + 1, outcome.version
    entry = entries.get(key)
    assert entry is not None
    assert (entry.value, entry.version) == (b"%d" % count, version)


def cancel_each(client: fasti.Client, number: int, pace: Pace) -> None:
    messages, producer = client.messages("mails"), client.producer("mails")
    while pace.is_on(number):
        id = producer.send(b"x", delay="1h").result(WAIT_S).id
        assert messages.cancel(id=id).status == "ok"


def move_one(client: fasti.Client, number: int, pace: Pace) -> None:
    """In the version that the last answer told."""
    messages, key = client.messages("mails"), f"moved-{number}"
    version = client.producer("mails").send(b"x", delay="1h", key=key).result(WAIT_S).version
    while pace.is_on(number):
        outcome = messages.move(key=key, delay="2h", version=version)
        assert outcome.status == "ok", (outcome, version)
        version = outcome.version


def exchange(client: fasti.Client, number: int, pace: Pace) -> None:
    """Transactions: an entry counts the messages that went with it."""
    key, version = f"sent-{number}", 0
    while pace.is_on(number):
        with client.transaction() as transaction:
            transaction.put("counters", key, b"x", version=version)
            transaction.send("mails", b"x", delay="1h", key=f"{key}-{version}")
        version = transaction.outcomes[0][0].version
    assert client.kv("counters").get(key).version == version  # type: ignore[union-attr]


def pause_and_go_on(client: fasti.Client, number: int, pace: Pace) -> None:
    """Each time it is a change, which an answer of a second time would deny."""
    name = f"tick-{number}"
    client.schedules("ticks").put(name, every="1d", target="mails", payload=b"x")
    paused = False
    while pace.is_on(number):
        paused = not paused
        schedules = client.schedules("ticks")
        assert (schedules.pause(name) if paused else schedules.resume(name)) is True


def count_in_a_loop(client: fasti.Client, number: int, pace: Pace) -> None:
    """The same in asyncio."""

    async def run() -> None:
        async with await aio.connect(str(client.transport), timeout="60s") as own:
            entries, key, version = own.kv("counters"), f"loop-{number}", 0
            while pace.is_on(number):
                outcome = await entries.put(key, b"x", version=version)
                assert outcome.status == "ok", (outcome, version)
                version = outcome.version

    asyncio.run(run())


ALL = (count_up, cancel_each, move_one, exchange, pause_and_go_on)


def make_topics(client: fasti.Client) -> None:
    client.create_topic("mails")
    client.create_topic("counters", kind="kv")
    client.create_topic("ticks", kind="cron")


def work_through(
    address: str,
    kill: Callable[[int], None],
    workers: list[Callable[..., None]],
    kills: int = KILLS,
) -> None:
    """All workers at once, over some kills; what one of them finds wrong is raised."""
    pace = Pace(len(workers))
    with fasti.connect(address, timeout="60s") as client, ThreadPoolExecutor(len(workers)) as pool:
        make_topics(client)

        def run(worker: Callable[..., None], number: int) -> None:
            try:
                worker(client, number, pace)
            finally:
                pace.end()

        running = [pool.submit(run, worker, number) for number, worker in enumerate(workers)]
        try:
            for number in range(kills):
                pace.await_answers()
                kill(number)
            pace.await_answers()
        finally:
            pace.end()
        for each in running:
            each.result(WAIT_S)
