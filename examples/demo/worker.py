"""One of the demo's worker processes: a consumer of the SDK that tells what it gets on stdout.

A fact is a JSON list on a line. A delivery is told before it is acknowledged, with the time of this
machine's clock at which this code had the message; an ack is told when the broker has answered.
When the broker is killed the worker does nothing about it: the SDK connects again. It ends when
stdin does.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from contextlib import suppress
from typing import Any

from examples.demo.traffic import TOPIC, now_us
from fasti.client.batch import Batch
from fasti.client.client import connect
from fasti.client.consumer import Consumer
from fasti.errors import FastiError

_ROWS = 500
_PREFETCH = 1_000
# Nothing came for so long: time to look whether to end.
_IDLE = "200ms"


_writing = threading.Lock()


def tell(lines: list[list[Any]]) -> None:
    """Out of this process when the call returns, in whole lines. From any thread."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with _writing:
        sys.stdout.write(text)
        sys.stdout.flush()


def work(consumer: Consumer, acks: queue.SimpleQueue[Batch | None], stop: threading.Event) -> None:
    """Takes what arrives; the answers to acks are waited for by another thread."""
    while not stop.is_set():
        for batch in consumer.batches(_ROWS, wait=0):
            started_us = now_us()
            ids = batch.table.column("id").to_pylist()
            carried = map(int, batch.table.column("payload").to_pylist())
            tell([["delivered", *pair, started_us] for pair in zip(ids, carried, strict=True)])
            acks.put(batch)


def acknowledge(consumer: Consumer, acks: queue.SimpleQueue[Batch | None]) -> None:
    """Acknowledges all that there is together, and tells of it when the answers are here."""
    last = False
    while not last:
        waiting = [acks.get()]
        while not acks.empty():
            waiting.append(acks.get())
        last = waiting[-1] is None
        ids: list[int] = []
        for batch in waiting:
            if batch is not None:
                batch.ack()
                ids += batch.table.column("id").to_pylist()
        # Without an answer, or with a bad one, nothing is told: the message may come again.
        with suppress(FastiError):
            consumer.flush()
            at_us = now_us()
            tell([["acknowledged", number, at_us] for number in ids])


def main(address: str, name: str) -> None:
    """Works until stdin ends."""
    # The story itself tells when the broker is away and back.
    logging.getLogger("fasti.client").setLevel(logging.ERROR)
    sys.setswitchinterval(0.0005)
    with (
        connect(address) as client,
        client.consumer(TOPIC, name=name, prefetch=_PREFETCH, timeout=_IDLE) as consumer,
    ):
        stop = threading.Event()
        acks: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        acking = threading.Thread(target=acknowledge, args=(consumer, acks))
        acking.start()
        threading.Thread(target=_listen, args=(stop,), daemon=True).start()
        tell([["ready"]])
        try:
            work(consumer, acks, stop)
        finally:
            acks.put(None)
            acking.join()


def _listen(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
