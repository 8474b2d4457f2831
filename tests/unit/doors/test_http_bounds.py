"""Connections to the HTTP port that are slow, endless or too many are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from fasti.doors import http_bounds
from fasti.doors.http_bounds import BoundedProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


def serving(test: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[None]]) -> None:
    async def run() -> None:
        config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: BoundedProtocol(config, state, {}), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        opened: list[Streams] = []

        async def connect() -> Streams:
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            return opened[-1]

        async with asyncio.timeout(30):
            await test(connect)
        for _, writer in opened:
            writer.close()
        server.close()
        for left in list(BoundedProtocol.waiting):
            left._end()

    asyncio.run(run())


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHo",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
        REQUEST + b"GET /",
    ],
)
def test_a_slow_request_is_ended(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "REQUEST_S", 0.05)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert await ended(reader)

    serving(test)


def test_of_too_many_connections_the_oldest_that_wait_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "CONNECTIONS_MAX", 5)

    async def test(connect: Callable[[], Awaitable[Streams]]) -> None:
        crowd = [await connect() for _ in range(8)]
        for reader, _ in crowd[:3]:
            assert await ended(reader)
        reader, writer = crowd[-1]
        for _ in range(3):
            writer.write(REQUEST)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"ok"

    serving(test)


def test_requests_that_come_together_are_answered() -> None:
    async def test(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(REQUEST * 3)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"ok"
        assert len(BoundedProtocol.waiting) == 1

    serving(test)
