"""The clients of the soak: each lives for seconds, does one kind of work, leaves nothing and goes.

A crowd is one process with many of them; the soak kills it in the middle, clears away what it had made
under names of its own, and starts another.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fasti

Figures = dict[str, Any]
Life = Callable[[fasti.Client, random.Random], int]

WORK, ASKS, EVENTS, ENTRIES, CRON = "work", "asks", "events", "entries", "cron"
COUNTS = ("lives", "messages", "errors")
_PAYLOAD = b"x" * 100
_BATCH = 200
_IDLE = "1s"
_PAUSE_S = 3.0


def make_topics(client: fasti.Client) -> None:
    """What all clients share. Leases are short: those of killed clients come back soon."""
    client.create_topic(WORK, lease="5s", max_attempts=1_000)
    client.create_topic(ASKS, lease="5s")
    client.create_topic(EVENTS, kind="log", partitions=4, segment_age="1m")
    client.create_topic(ENTRIES, kind="kv")
    client.create_topic(CRON, kind="cron")


def _own_name(draw: random.Random) -> str:
    """Of something that one client makes: it tells of which process it is."""
    return f"own-{os.getpid()}-{draw.getrandbits(64):x}"


def clear(client: fasti.Client, process: int) -> None:
    """Removes what clients of a killed process would have removed themselves."""
    prefix = f"own-{process}-"
    made: list[tuple[list[str], Callable[[str], Any]]] = [
        ([topic.name for topic in client.topics()], client.delete_topic),
        ([group.name for group in client.groups(EVENTS).list()], client.groups(EVENTS).delete),
        ([each.name for each in client.schedules(CRON).list()], client.schedules(CRON).delete),
    ]
    for names, delete in made:
        for name in names:
            if name.startswith(prefix):
                with suppress(fasti.errors.NotFound):
                    delete(name)


def _produce(client: fasti.Client, draw: random.Random) -> int:
    with client.producer(WORK) as producer:
        keys = [uuid.UUID(int=draw.getrandbits(128)).hex for _ in range(_BATCH)]
        producer.send_batch([_PAYLOAD] * _BATCH, key=keys, delay=draw.uniform(0, 3))
        for _ in range(20):
            producer.send(_PAYLOAD, delay=draw.uniform(0, 3))
    return _BATCH + 20


def _consume(client: fasti.Client, draw: random.Random) -> int:
    done, until = 0, time.monotonic() + draw.uniform(1, 6)
    for message in client.consumer(WORK, timeout=_IDLE):
        if draw.random() < 0.01:
            message.nack(delay="1s")
        else:
            message.ack()
        done += 1
        if time.monotonic() > until:
            break
    return done


def _change(client: fasti.Client, draw: random.Random) -> int:
    with client.producer(WORK) as producer:
        sent = producer.send_batch([_PAYLOAD] * _BATCH, delay="30s")
    messages = client.messages(WORK)
    # If it is killed now, consumers get them in a minute.
    messages.move(id=sent.ids, delay="1m")
    messages.get(id=sent.ids)
    messages.cancel(id=sent.ids)
    return _BATCH


def _ask(client: fasti.Client, draw: random.Random) -> int:
    for number in range(5):
        with suppress(fasti.errors.TimedOut):
            client.call(ASKS, b"%d" % number, timeout="2s")
    return 5


def _answer(client: fasti.Client, draw: random.Random) -> int:
    done, until = 0, time.monotonic() + draw.uniform(2, 6)
    for message in client.consumer(ASKS, timeout=_IDLE):
        message.reply(message.payload)
        done += 1
        if time.monotonic() > until:
            break
    return done


def _log(client: fasti.Client, draw: random.Random) -> int:
    group = _own_name(draw)
    client.groups(EVENTS).create(group, start="latest")
    with client.producer(EVENTS) as producer:
        producer.send_batch([_PAYLOAD] * _BATCH)
    done = 0
    with client.consumer(EVENTS, group=group, timeout=_IDLE) as consumer:
        for message in consumer:
            message.ack()
            done += 1
            if done == _BATCH:
                break
    client.groups(EVENTS).delete(group)
    return done


def _entries(client: fasti.Client, draw: random.Random) -> int:
    entries = client.kv(ENTRIES)
    prefix = f"{draw.getrandbits(64):x}-"
    with entries.watch(prefix=prefix, timeout=_IDLE):
        for number in range(20):
            entries.put(f"{prefix}{number}", _PAYLOAD, ttl="10s")
        for number in range(10):
            entries.delete(f"{prefix}{number}")
    return 30


def _topic(client: fasti.Client, draw: random.Random) -> int:
    name = _own_name(draw)
    client.create_topic(name, partitions=4)
    try:
        with client.producer(name) as producer:
            producer.send_batch([_PAYLOAD] * _BATCH, delay="1h")
    finally:
        client.delete_topic(name)
    return _BATCH


def _schedule(client: fasti.Client, draw: random.Random) -> int:
    schedules = client.schedules(CRON)
    name = _own_name(draw)
    schedules.put(name, every="500ms", target=WORK, payload=_PAYLOAD)
    time.sleep(2)
    schedules.delete(name)
    return 1


def _read(client: fasti.Client, draw: random.Random) -> int:
    rows = sum(batch.num_rows for batch in client.messages(WORK).scan())
    for number, table in enumerate(client.changes(topic=WORK, start="latest", timeout=_IDLE)):
        rows += table.num_rows
        if number == 10:
            break
    client.metrics()
    return rows


# Consumers are as many as all others: what is produced is worked off.
LIVES: dict[str, tuple[Life, int]] = {
    "produce": (_produce, 8),
    "consume": (_consume, 12),
    "change": (_change, 3),
    "ask": (_ask, 3),
    "answer": (_answer, 4),
    "log": (_log, 3),
    "entries": (_entries, 3),
    "topic": (_topic, 2),
    "schedule": (_schedule, 2),
    "read": (_read, 2),
}


class _Crowd:
    """Clients in threads, one life after another, until told to end."""

    def __init__(self, address: str, clients: int, seed: int) -> None:
        self._address = address
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._last_error = ""
        self._threads = [
            threading.Thread(target=self._live, args=(random.Random(seed * 1_000 + number),))
            for number in range(clients)
        ]

    def run(self) -> Figures:
        """Until the starter closes the pipe or says another word."""
        for thread in self._threads:
            thread.start()
        sys.stdin.readline()
        self._ending.set()
        for thread in self._threads:
            thread.join()
        return {**self._counts, "last_error": self._last_error}

    def _live(self, draw: random.Random) -> None:
        names, weights = list(LIVES), [weight for _, weight in LIVES.values()]
        while not self._ending.is_set():
            name = draw.choices(names, weights)[0]
            try:
                with fasti.connect(self._address, timeout="20s") as client:
                    rows = LIVES[name][0](client, draw)
                counted = {"lives": 1, "messages": rows}
            except Exception as error:
                counted = {"errors": 1}
                self._last_error = f"{name}: {type(error).__name__}: {error}"
            with self._lock:
                self._counts.update(counted)
            self._ending.wait(draw.uniform(0, _PAUSE_S))


def crowd(address: str, clients: int, seed: int) -> Figures:
    """One process full of clients."""
    return _Crowd(address, clients, seed).run()
