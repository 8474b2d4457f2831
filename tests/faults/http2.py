"""HTTP/2 by hand, as a hostile client speaks it: frames that no library would send."""

from __future__ import annotations

import socket

from fasti.protocol.envelope import pack
from fasti.protocol.schemas import VERSION

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _UNKNOWN = 0, 1, 4, 0xBB
_END_STREAM, _END_HEADERS = 1, 4
_DO_ACTION = "/arrow.flight.protocol.FlightService/DoAction"


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    """One frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def greeting() -> bytes:
    """What a client sends first."""
    return PREFACE + frame(_SETTINGS)


def padding(count: int) -> bytes:
    """That many frames of 16 KiB which mean nothing, and which everybody must read over."""
    return frame(_UNKNOWN, body=bytes(16_384)) * count


def hello(token: str = "") -> bytes:
    """A whole call of the action `hello`."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _DO_ACTION,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = pack({"version": VERSION})
    action = b"\x0a\x05hello\x12" + _varint(len(body)) + body
    message = b"\0" + len(action).to_bytes(4, "big") + action
    opened = frame(_HEADERS, _END_HEADERS, 1, b"".join(map(_literal, headers.items())))
    return opened + frame(_DATA, _END_STREAM, 1, message)


def _literal(header: tuple[str, str]) -> bytes:
    """Never indexed, without Huffman's code."""
    return b"\0" + b"".join(_prefixed(text.encode()) for text in header)


def _prefixed(text: bytes) -> bytes:
    length = bytes([len(text)]) if len(text) < 127 else b"\x7f" + _varint(len(text) - 127)
    return length + text


def _varint(value: int) -> bytes:
    made = b""
    while value >= 128:
        made += bytes([value % 128 + 128])
        value //= 128
    return made + bytes([value])


def answer(connection: socket.socket) -> bytes:
    """What comes, until the frame with which a call's answer ends."""
    received = b""
    while True:
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionError(f"closed after {received!r}")
        received += piece
        place = 0
        while len(received) - place >= 9:
            length = int.from_bytes(received[place : place + 3], "big")
            kind, flags = received[place + 3], received[place + 4]
            if kind == _HEADERS and flags & _END_STREAM:
                return received
            place += 9 + length


def closed(connection: socket.socket) -> bool:
    """Waits until the other side has ended the connection. Its timeout is the socket's."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True
