"""A network between clients and a broker that can be cut, held up and slowed down.

Every connection has two threads, one for each direction. Bytes are never changed, reordered or
dropped without the connection ending: that is what TCP promises, so nothing worse can happen.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 16
# Closing with this sends a reset at once and throws away what was not delivered.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own. A context manager; any thread may cause trouble."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        # Seconds by which every piece is late, to the broker and back.
        self.delay_there = self.delay_back = 0.0
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"fasti://{host}:{port}"

    def cut(self) -> None:
        """Every connection is reset, whatever is on its way."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)

    def hold_up(self) -> None:
        """Nothing moves, and nobody is told."""
        self._flowing.clear()

    def let_go(self) -> None:
        """What was held up goes on."""
        self._flowing.set()

    def slow(self, there: float, back: float) -> None:
        """Delays, each direction by itself."""
        self.delay_there, self.delay_back = there, back

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            # Wakes the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                _reset(near)
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
                self.connections += 1
            for source, target, there in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(source, target, there), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, there: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_CHUNK):
                delay = self.delay_there if there else self.delay_back
                if delay:
                    time.sleep(delay)
                self._flowing.wait()
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
            return
        _reset(source)
        _reset(target)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Wakes the thread that reads; closing alone would leave it there.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
