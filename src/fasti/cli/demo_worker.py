"""The process that the demo kills: a shard with its consumers, which tells facts on stdout.

A fact is a line of JSON. What was promised is told after the promise (`produced`, `moved`,
`cancelled`, `acked`), what is about to be asked is told before (`moving`, `cancelling`), and a
delivery is told before it is acknowledged; so whoever reads the lines knows at any moment, also
after a kill, what must be true. The line `finish` on stdin ends it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.broker.session import Delivery, Session
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core.commands import (
    Ack,
    Cancel,
    Count,
    CreateTopic,
    Forecast,
    Lease,
    List,
    Move,
    Produce,
    Target,
    When,
)
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Messages
from fasti.model import DAY_US, SECOND_US, TopicSettings
from fasti.storage.files import LocalFiles

Int64s = NDArray[np.int64]

TOPIC = "reminders"
WORKERS = 4
CREDIT = 256
BATCH_ROWS = 5_000
AHEAD_US = SECOND_US // 2
FAR_DAYS = 30
_CHANGE_EVERY_S = 0.1
_CHANGED_ROWS = 20
_SETTINGS = ShardSettings(segment_bytes=8 << 20, checkpoint_bytes=4 << 20)


class Facts:
    """Writes lines, whole ones, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0

    def tell(self, fact: str, **values: Any) -> None:
        """One fact, out of this process when the call returns."""
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        line = json.dumps({"fact": fact, **plain}, separators=(",", ":")) + "\n"
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def next_call(self) -> int:
        """A number that ties a question to its answer."""
        with self._lock:
            self._calls += 1
            return self._calls


class Worker:
    """One consumer: takes what arrives, tells of it, and acknowledges it."""

    def __init__(self, shard: Shard, facts: Facts, number: int, stop: threading.Event) -> None:
        self._shard, self._facts, self._stop = shard, facts, stop
        self._name = f"worker-{number}"
        self._acks: deque[tuple[Int64s, Future[list[Any]]]] = deque()
        self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        session = self._shard.open_session()
        session.lease(TOPIC, self._name, CREDIT)
        while not self._stop.is_set():
            self._take(session)
            while self._acks and self._acks[0][1].done():
                self._tell_ack()
        while self._acks:
            self._tell_ack()
        session.close()

    def _take(self, session: Session) -> None:
        arrived: list[tuple[int, Delivery]] = []
        delivery = session.receive(0.05)
        while delivery is not None:
            arrived.append((self._shard.clock.now_us(), delivery))
            if len(arrived) == CREDIT:
                break
            delivery = session.receive(0)
        if not arrived:
            return
        ids = np.concatenate([delivery.leased.ids for _, delivery in arrived])
        due = np.concatenate([delivery.leased.due_us for _, delivery in arrived])
        sizes = [len(delivery.leased.ids) for _, delivery in arrived]
        started = np.repeat([at_us for at_us, _ in arrived], sizes)
        tokens = np.repeat([delivery.leased.token for _, delivery in arrived], sizes)
        self._facts.tell("delivered", ids=ids, due=due, started=started)
        ack = Ack(TOPIC, ids, tokens, started)
        # The credit that was used up is given again in the same request.
        again = Lease(TOPIC, session.number, self._name, len(ids))
        self._acks.append((ids, self._shard.submit([ack, again])))

    def _tell_ack(self) -> None:
        ids, answer = self._acks.popleft()
        self._facts.tell("acked", ids=ids, status=answer.result()[0].status)


def produce(shard: Shard, facts: Facts, due: Int64s, keyed: str = "") -> None:
    """Schedules messages in batches."""
    for begin in range(0, len(due), BATCH_ROWS):
        part = due[begin : begin + BATCH_ROWS]
        numbers = range(begin, begin + len(part))
        # Every second message has a key of its own.
        names = [f"{keyed}{n}" if n % 2 == 0 else None for n in numbers] if keyed else None
        rows = Rows.of([b"reminder %d" % n for n in numbers], key=names)
        command = Produce(TOPIC, rows, When(due_us=part), keys=rows.keys(shard.store.seed))
        reply = shard.call(command)
        at_us = shard.clock.now_us()
        facts.tell("produced", ids=reply.ids, due=part, status=reply.status, at_us=at_us)


def move(shard: Shard, facts: Facts, ids: Int64s, due: Int64s, target: Target) -> None:
    """Moves messages, with a word before and after."""
    call = facts.next_call()
    facts.tell("moving", call=call, ids=ids, due=due)
    reply = shard.call(Move(TOPIC, target, When(due_us=due)))
    facts.tell("moved", call=call, status=reply.status)


def cancel(shard: Shard, facts: Facts, ids: Int64s, target: Target) -> None:
    """Cancels messages, with a word before and after."""
    call = facts.next_call()
    facts.tell("cancelling", call=call, ids=ids)
    reply = shard.call(Cancel(TOPIC, target))
    facts.tell("cancelled", call=call, status=reply.status)


def find(shard: Shard, wanted: List) -> Messages:
    """The first page that has something; a page is short where a filter leaves little."""
    page: Messages = shard.call(wanted)
    while not len(page.ids) and page.next_after_id:
        wanted.after_id = page.next_after_id
        page = shard.call(wanted)
    return page


def change_until(shard: Shard, facts: Facts, stop: threading.Event) -> None:
    """Goes on moving and cancelling what is pending, some soon due and some far away."""
    random = np.random.default_rng(shard.clock.now_us())
    while not stop.wait(_CHANGE_EVERY_S):
        now_us = shard.clock.now_us()
        day_us = now_us + DAY_US
        soon = List(TOPIC, 0, 200, due_from_us=now_us, due_to_us=day_us, state="scheduled")
        later = List(TOPIC, 0, 200, due_from_us=day_us, state="scheduled")
        for wanted in (soon, later):
            page = find(shard, wanted)
            count = min(_CHANGED_ROWS, len(page.ids) // 2)
            if not count:
                continue
            chosen = random.choice(len(page.ids), 2 * count, replace=False)
            moved, dropped = chosen[:count], chosen[count:]
            due = page.columns["due_us"][moved] + AHEAD_US
            move(shard, facts, page.ids[moved], due, Target(ids=page.ids[moved]))
            cancel(shard, facts, page.ids[dropped], Target(ids=page.ids[dropped]))


def begin(shard: Shard, facts: Facts, near: int, far: int, span_us: int) -> None:
    """Fills a new topic, and changes some of it by key before anybody consumes."""
    shard.call(CreateTopic(TOPIC, TopicSettings(lease_us=5 * SECOND_US)))
    random = np.random.default_rng(1)
    from_us = shard.clock.now_us() + DAY_US
    ahead = random.beta(1.2, 3.0, far) * (FAR_DAYS - 1) * DAY_US
    produce(shard, facts, from_us + ahead.astype(np.int64))
    from_us = shard.clock.now_us() + AHEAD_US
    facts.tell("window", from_us=from_us, to_us=from_us + span_us)
    produce(shard, facts, np.sort(from_us + random.integers(0, span_us, near)), keyed="order-")
    names = [f"order-{n}" for n in range(near // 2 & ~1, near, 2)][:200]
    keys = Keys(Rows.of([b""] * len(names), key=names).batch.column("key"), shard.store.seed)
    _cancel_by_key(shard, facts, keys)


def _cancel_by_key(shard: Shard, facts: Facts, keys: Keys) -> None:
    call = facts.next_call()
    reply = shard.call(Cancel(TOPIC, Target(keys=keys)))
    facts.tell("cancelling", call=call, ids=reply.ids)
    facts.tell("cancelled", call=call, status=reply.status)


def tell_the_rest(shard: Shard, facts: Facts) -> None:
    """Everything that is still pending, the counts, and what is coming."""
    after = 0
    while True:
        page = shard.call(List(TOPIC, after_id=after, limit=65_536))
        if len(page.ids):
            facts.tell("remaining", ids=page.ids, due=page.columns["due_us"])
        after = page.next_after_id
        if not after:
            break
    facts.tell("counts", states=shard.call(Count(TOPIC)).states)
    from_us = shard.clock.now_us() // DAY_US * DAY_US
    coming = shard.call(Forecast(TOPIC, from_us, from_us + (FAR_DAYS + 2) * DAY_US, DAY_US))
    facts.tell("forecast", start=coming.start_us, count=coming.count)


def main(directory: str, life: str, near: str, far: str, span_us: str) -> None:
    """Opens the directory, works until it is told to finish, and closes it."""
    sys.setswitchinterval(0.0005)
    facts = Facts()
    begun = time.perf_counter()
    shard = Shard(LocalFiles(Path(directory)), _SETTINGS)
    facts.tell("opened", seconds=time.perf_counter() - begun, at_us=shard.clock.now_us())
    if life == "begin":
        begin(shard, facts, int(near), int(far), int(span_us))
    stop = threading.Event()
    workers = [Worker(shard, facts, number, stop) for number in range(WORKERS)]
    changer = threading.Thread(target=change_until, args=(shard, facts, stop), daemon=True)
    changer.start()
    sys.stdin.readline()
    stop.set()
    for thread in (changer, *(worker.thread for worker in workers)):
        thread.join()
    tell_the_rest(shard, facts)
    checkpoints = shard.housekeeper.checkpoints
    begun = time.perf_counter()
    shard.close()
    facts.tell("closed", seconds=time.perf_counter() - begun, checkpoints=checkpoints)


if __name__ == "__main__":
    main(*sys.argv[1:])
