"""NATS JetStream: scheduled messages of the server (since 2.12), one schedule per subject.

`Nats-Schedule: @at ...` on a subject of its own makes the server publish the message to the work
subject at that moment. Publishing to the same subject again moves it, deleting the message cancels it.
What is due now is published to the work subject. Acks are sent but not confirmed, as is usual.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.peers import client as peers
from benchmarks.peers.server import PEERS_VENV, output
from benchmarks.peers.server import Server as BaseServer

_ACKS_PENDING = 100_000
_FETCH_S = 0.2


class Server(BaseServer):
    """One server with JetStream; `sync_interval: always`, or its default of two minutes."""

    program = str(PEERS_VENV / "bin" / "nats-server")

    @classmethod
    def missing(cls) -> str | None:
        found = cls.executable()
        return None if found else "nats-server is not installed: make bench-peers-install"

    @classmethod
    def version(cls) -> str:
        return output(cls.program, "--version").removeprefix("nats-server: v")

    def prepare(self) -> None:
        sync = self.settings.get("sync_interval")
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            "jetstream {",
            f'  store_dir: "{self.directory / "data"}"',
            *([f"  sync_interval: {sync}"] if sync else []),
            "}",
        ]
        Path(self.directory, "nats.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [self.program, "-c", str(self.directory / "nats.conf")]


def connect(address: str, queue: str) -> Client:
    """By nats-py, on an event loop of the client's own."""
    return Client(address, queue)


class Client(peers.Client):
    """One connection and its event loop, which runs while a call does."""

    def __init__(self, address: str, queue: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stream = queue.replace(".", "-")
        self._work, self._later = f"{self._stream}.work", f"{self._stream}.later"
        self._run(self._connect(address))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _connect(self, address: str) -> None:
        import nats
        from nats.js.api import RetentionPolicy, StorageType, StreamConfig

        self._nats = await nats.connect(f"nats://{address}")
        self._js = self._nats.jetstream(timeout=30, publish_async_max_pending=10_000)
        await self._js.add_stream(
            StreamConfig(
                name=self._stream,
                subjects=[self._work, f"{self._later}.*"],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                allow_msg_schedules=True,
                allow_direct=True,
            )
        )

    def schedule(self, payload: bytes, due_us: int) -> Any:
        subject, headers = self._routed(due_us)
        sent = self._run(self._js.publish(subject, payload, headers=headers))
        return subject, sent.seq

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        self._run(self._publish_all(column, dues_us))

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        handles: Sequence[Any] = self._run(self._publish_all(payloads, dues_us))
        return handles

    async def _publish_all(self, payloads: list[bytes], dues_us: array[int]) -> list[Any]:
        routes = [self._routed(due_us) for due_us in dues_us]
        waiting = [
            await self._js.publish_async(subject, payload, headers=headers)
            for (subject, headers), payload in zip(routes, payloads, strict=True)
        ]
        sent = await asyncio.gather(*waiting)
        return [(subject, ack.seq) for (subject, _), ack in zip(routes, sent, strict=True)]

    def _routed(self, due_us: int) -> tuple[str, dict[str, str] | None]:
        if due_us <= peers.now_us():
            return self._work, None
        return f"{self._later}.{uuid4().hex}", self._schedule_at(due_us)

    def _schedule_at(self, due_us: int) -> dict[str, str]:
        moment = datetime.fromtimestamp(due_us / 1e6, UTC).isoformat()
        return {"Nats-Schedule": f"@at {moment}", "Nats-Schedule-Target": self._work}

    def cancel(self, handle: Any) -> None:
        self._run(self._delete(handle[1]))

    def cancel_many(self, handles: Sequence[Any]) -> None:
        async def cancel_all() -> None:
            await asyncio.gather(*(self._delete(seq) for _, seq in handles))

        self._run(cancel_all())

    async def _delete(self, seq: int) -> None:
        # By the call itself: that of nats-py has no `no_erase`, and overwriting each message on the
        # disk is what nobody asks for here.
        asked = json.dumps({"seq": seq, "no_erase": True}).encode()
        subject = f"$JS.API.STREAM.MSG.DELETE.{self._stream}"
        answer = await self._nats.request(subject, asked, timeout=30)
        assert json.loads(answer.data).get("success"), answer.data

    def move(self, handle: Any, due_us: int) -> None:
        self._run(self._js.publish(handle[0], b"x" * 100, headers=self._schedule_at(due_us)))

    def move_many(self, handles: Sequence[Any], due_us: int) -> None:
        async def move_all() -> None:
            headers = self._schedule_at(due_us)
            waiting = [
                await self._js.publish_async(subject, b"x" * 100, headers=headers)
                for subject, _ in handles
            ]
            await asyncio.gather(*waiting)

        self._run(move_all())

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        self._run(self._consume(handler, idle_s))

    async def _consume(self, handler: peers.Handler, idle_s: float) -> None:
        from nats.js.api import ConsumerConfig

        done = asyncio.Event()
        last = time.monotonic()

        async def handle(message: Any) -> None:
            nonlocal last
            if done.is_set():
                return
            enough = handler(message.data)
            await message.ack()
            last = time.monotonic()
            if enough:
                done.set()

        subscription = await self._js.subscribe(
            self._work,
            durable="work",
            manual_ack=True,
            cb=handle,
            config=ConsumerConfig(ack_wait=peers.LEASE_S),
        )
        while not done.is_set() and time.monotonic() - last < idle_s:
            try:
                await asyncio.wait_for(done.wait(), max(0.01, idle_s - (time.monotonic() - last)))
            except TimeoutError:
                continue
        await self._nats.flush()
        await subscription.drain()

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        self._run(self._consume_batches(handler, count, idle_s))

    async def _consume_batches(
        self, handler: peers.BatchHandler, count: int, idle_s: float
    ) -> None:
        from nats.errors import TimeoutError as NothingCame
        from nats.js.api import ConsumerConfig

        settings = ConsumerConfig(max_ack_pending=_ACKS_PENDING)
        subscription = await self._js.pull_subscribe(self._work, durable="work", config=settings)
        last = time.monotonic()
        while time.monotonic() - last < idle_s:
            try:
                messages = await subscription.fetch(count, timeout=_FETCH_S)
            except (TimeoutError, NothingCame):
                continue
            for message in messages:
                await message.ack()
            await self._nats.flush()
            last = time.monotonic()
            if handler(len(messages)):
                return

    def close(self) -> None:
        self._run(self._nats.close())
        self._loop.close()
