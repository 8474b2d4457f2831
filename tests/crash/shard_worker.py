"""The process that test_shard_kill.py kills: a shard under load that reports every fact.

Each line on stdout is JSON: what is about to be asked ("try") before it is asked, and what was
answered ("ok") after; the parent reads what had been written when the process died.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from fasti.broker.shard import Shard
from fasti.config import Durability, ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.model import Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles

SETTINGS = ShardSettings(
    segment_bytes=1 << 15,
    memory_bytes=64 << 20,
    leases_max=1 << 14,
    checkpoint_bytes=1 << 15,
    checkpoint_bytes_per_s=1 << 30,
)
FAR_US = 3600 * 1_000_000


def report(kind: str, what: str, **facts: Any) -> None:
    line = json.dumps({"kind": kind, "what": what, **facts}) + "\n"
    os.write(1, line.encode())  # Shorter than a pipe's buffer, so never mixed with another.


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


class Load:
    """Threads that use one shard, each in its own way."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self._shard, self._seed = shard, seed
        page = shard.call(co.List("t", limit=60_000))
        far = page.columns["due_us"] > shard.clock.now_us() + FAR_US // 2 if page.columns else []
        self._far: list[int] = page.ids[far].tolist() if page.columns else []

    def produce(self, producer: int) -> None:
        rng = random.Random(self._seed * 100 + producer)
        number = 0
        while True:
            number += 1
            now_us = self._shard.clock.now_us()
            names = [f"{self._seed}-{producer}-{number}-{n}" for n in range(rng.randrange(1, 5))]
            far = rng.random() < 0.4
            due = [now_us + (FAR_US if far else rng.randrange(300_000)) for _ in names]
            keys = [name if rng.random() < 0.5 else None for name in names]
            payloads = [name.encode() + b"." * rng.choice([0, 10, 900]) for name in names]
            rows = Rows.of(payloads, key=keys)
            report("try", "produce", names=names)
            command = co.Produce("t", rows, co.When(due_us=int64s(*due)))
            command.keys = rows.keys(self._shard.store.seed)
            reply = self._shard.call(command)
            assert reply.all_ok, reply
            ids = reply.ids.tolist()
            sizes = [len(payload) for payload in payloads]
            report("ok", "produce", ids=ids, names=names, due=due, keys=keys, sizes=sizes)
            if far:
                self._far += ids

    def change(self) -> None:
        rng = random.Random(self._seed * 100 + 77)
        while True:
            if len(self._far) < 3:
                self._shard.call(co.Count("t"))
                continue
            message = self._far[rng.randrange(len(self._far))]
            target = co.Target(ids=int64s(message))
            verb = rng.choice(["cancel", "move", "update"])
            if verb == "cancel":
                self._far.remove(message)
                report("try", "cancel", id=message)
                reply = self._shard.call(co.Cancel("t", target))
                facts: dict[str, Any] = {}
            elif verb == "move":
                facts = {"due": self._shard.clock.now_us() + FAR_US + rng.randrange(1000)}
                report("try", "move", id=message, **facts)
                reply = self._shard.call(co.Move("t", target, co.When(due_us=facts["due"])))
            else:
                facts = {"name": f"{self._seed}-u{rng.randrange(1 << 30)}"}
                report("try", "update", id=message, **facts)
                reply = self._shard.update("t", target, Rows.of([facts["name"].encode()]))
            outcome = Outcome(int(reply.status[0])).word
            report(outcome, verb, id=message, **facts)

    def consume(self) -> None:
        rng = random.Random(self._seed * 100 + 99)
        session = self._shard.open_session()
        session.lease("t", f"consumer-{self._seed}", 20)
        while True:
            delivery = session.receive()
            assert delivery is not None
            now_us = self._shard.clock.now_us()
            leased = delivery.leased
            names = [
                p.rstrip(b".").decode() for p in delivery.payloads.column("payload").to_pylist()
            ]
            report(
                "ok",
                "deliver",
                ids=leased.ids.tolist(),
                due=leased.due_us.tolist(),
                names=names,
                token=leased.token,
                now=now_us,
            )
            for message in leased.ids.tolist():
                self._finish(message, leased.token, rng)
            session.lease("t", f"consumer-{self._seed}", len(leased.ids))

    def _finish(self, message: int, token: int, rng: random.Random) -> None:
        verb = rng.choices(["ack", "release", "nack", "leave"], [6, 1, 1, 1])[0]
        if verb == "leave":
            return
        kind = {"ack": co.Ack, "release": co.Release, "nack": co.Nack}[verb]
        report("try", verb, id=message)
        reply = self._shard.call(kind("t", int64s(message), int64s(token)))
        report(Outcome(int(reply.status[0])).word, verb, id=message)


def main() -> None:
    directory, seed, durability = sys.argv[1], int(sys.argv[2]), Durability(sys.argv[3])
    shard = Shard(FileStorage(LocalFiles(directory)), replace(SETTINGS, durability=durability))
    settings = TopicSettings(lease_us=3600 * 1_000_000, max_attempts=0, lookahead_us=0)
    assert shard.call(co.CreateTopic("t", settings)).error is None
    load = Load(shard, seed)
    targets: list[Any] = [lambda: load.produce(1), lambda: load.produce(2)]
    # Whoever listened is gone: so is this process, with all its threads.
    threading.excepthook = lambda _: os._exit(1)
    threads = [threading.Thread(target=t) for t in [*targets, load.change, load.consume]]
    for thread in threads:
        thread.start()
    # An interpreter that is ending doesn't let pyarrow import what it needs for the first rows.
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
