"""Procrastinate: jobs in PostgreSQL, by its own connectors and worker.

A worker is woken by NOTIFY for jobs that are due when they are deferred; for later ones it polls. The
default interval is five seconds; here it is 50 ms. A job's arguments are JSON, so payloads travel as
base64.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.adapters.postgresql import Server

__all__ = ["Client", "Server", "connect"]

_POLL_S = 0.05
_TASK = "peers.handle"


def connect(address: str, queue: str) -> Client:
    """Its synchronous connector for sends; the worker has its own."""
    return Client(address, queue)


class Client(peers.Client):
    """An app of its own."""

    def __init__(self, address: str, queue: str) -> None:
        import procrastinate
        import psycopg

        self._address, self._queue = address, queue
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(2)")
            made = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
            if made is None or made[0] is None:
                from procrastinate.schema import SchemaManager

                connection.execute(SchemaManager.get_schema())
        self._app = procrastinate.App(
            connector=procrastinate.SyncPsycopgConnector(conninfo=address)
        )
        self._app.open()
        self._manager = self._app.job_manager

    def schedule(self, payload: bytes, due_us: int) -> Any:
        return self._manager.defer_job(job=self._job(payload, due_us)).id

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        self.schedule_many(column, dues_us)

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        rows = zip(payloads, dues_us, strict=True)
        jobs = self._manager.batch_defer_jobs(jobs=[self._job(*row) for row in rows])
        return [job.id for job in jobs]

    def _job(self, payload: bytes, due_us: int) -> Any:
        from procrastinate.jobs import Job

        later = due_us > peers.now_us()
        return Job(
            id=None,
            queue=self._queue,
            lock=None,
            queueing_lock=None,
            task_name=_TASK,
            task_kwargs={"body": b64encode(payload).decode()},
            scheduled_at=datetime.fromtimestamp(due_us / 1e6, UTC) if later else None,
        )

    def cancel(self, handle: Any) -> None:
        assert self._manager.cancel_job_by_id(handle, delete_job=True)

    def move(self, handle: Any, due_us: int) -> None:
        raise peers.Cannot("no call moves a job that waits")

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        asyncio.run(self._work(handler, idle_s))

    async def _work(self, handler: peers.Handler, idle_s: float) -> None:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self._address))
        last, done = time.monotonic(), asyncio.Event()

        async def handle(body: str) -> None:
            nonlocal last
            last = time.monotonic()
            if handler(b64decode(body)):
                done.set()

        app.task(name=_TASK)(handle)
        async with app.open_async():
            worker = asyncio.create_task(
                app.run_worker_async(
                    queues=[self._queue],
                    fetch_job_polling_interval=_POLL_S,
                    delete_jobs="always",
                    install_signal_handlers=False,
                )
            )
            while not (done.is_set() or worker.done()) and time.monotonic() - last < idle_s:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.1)
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        raise peers.Cannot("a worker fetches and finishes jobs one by one")

    def close(self) -> None:
        self._app.close()
