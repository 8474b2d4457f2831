"""Celery with ETA on Redis: a worker fetches a task at once and keeps it in memory until its time.

The worker is Celery's own, with the solo pool (the quickest for small handlers) in the client process,
and acks late, so that a task is acknowledged after its handler as everywhere else here. Arguments are
JSON, so payloads travel as base64.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.adapters.redis_lua import Server

__all__ = ["Client", "Server", "connect"]


def connect(address: str, queue: str) -> Client:
    """An app whose broker is that Redis."""
    import celery

    app = celery.Celery("peers", broker=f"redis://{address}/0")
    app.conf.update(
        task_default_queue=queue,
        task_acks_late=True,
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=False,
    )
    return Client(app)


class Client(peers.Client):
    """One app; its worker can run once."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._handler: peers.Handler | None = None
        self._last = 0.0

        def handle(body: str) -> None:
            self._handle(b64decode(body))

        self._task = app.task(name="peers.handle", shared=False)(handle)

    def schedule(self, payload: bytes, due_us: int) -> Any:
        later = due_us > peers.now_us()
        eta = datetime.fromtimestamp(due_us / 1e6, UTC) if later else None
        return self._task.apply_async((b64encode(payload).decode(),), eta=eta).id

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        for payload, due_us in zip(column, dues_us, strict=True):
            self.schedule(payload, due_us)

    def cancel(self, handle: Any) -> None:
        raise peers.Cannot("`revoke` asks running workers to skip a task; nothing answers or stays")

    def move(self, handle: Any, due_us: int) -> None:
        raise peers.Cannot("no call moves a task")

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        from celery.worker import state

        self._handler, self._last = handler, time.monotonic()
        logging.getLogger("celery").setLevel(logging.ERROR)
        stopped = threading.Event()

        def watch() -> None:
            while not stopped.wait(0.1):
                if time.monotonic() - self._last > idle_s:
                    state.should_stop = 0
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            worker = self._app.Worker(
                pool="solo",
                concurrency=1,
                loglevel="ERROR",
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
                quiet=True,
            )
            # It ends by what would end a program of its own.
            with suppress(SystemExit):
                worker.start()
        finally:
            stopped.set()
            watcher.join()

    def _handle(self, body: bytes) -> None:
        from celery.worker import state

        self._last = time.monotonic()
        assert self._handler is not None
        if self._handler(body):
            state.should_stop = 0

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        raise peers.Cannot("a worker takes and acknowledges tasks one by one")

    def close(self) -> None:
        self._app.close()
