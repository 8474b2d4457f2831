"""A network between clients and a broker that can be cut, held up and slowed down.

Every connection has two threads, one for each direction. Bytes are never changed, reordered or
dropped without the connection ending: that is what TCP promises, so nothing worse can happen.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 16
# What a direction that is held up reads; the rest stays where it is.
_HELD_BYTES_MAX = 4 << 20
# Closing with this sends a reset at once and throws away what was not delivered.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own. A context manager; any thread may cause trouble."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        # Of these one direction has ended.
        self._half_ended: list[set[socket.socket]] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self._shut = False
        # Pieces that were held up when they came, and go on with `let_go`.
        self.held: list[bytes] = []
        # Seconds by which every piece is late, to the broker and back.
        self.delay_there = self.delay_back = 0.0
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"fasti://{self.place}"

    @property
    def place(self) -> str:
        """The `host:port` at which it listens."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Every connection is reset, whatever is on its way."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)

    def shut(self) -> None:
        """As `cut`, and whoever connects is reset as well, until `reopen`."""
        self._shut = True
        self.cut()

    def reopen(self) -> None:
        """Connections can be made again."""
        self._shut = False

    def hold_up(self) -> None:
        """Nothing moves, and nobody is told."""
        self.held = []
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
                if self._shut:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._target)
            except OSError:
                _reset(near)
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
                self.connections += 1
            if self._shut:  # Meanwhile.
                self.cut()
                continue
            for source, target, there in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(source, target, there), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, there: bool) -> None:
        # One that was cut while its pieces were held up has no number to wait for.
        with suppress(OSError, ValueError):
            while piece := source.recv(_CHUNK):
                delay = self.delay_there if there else self.delay_back
                if delay:
                    time.sleep(delay)
                if not self._flowing.is_set():
                    piece = self._hold(source, piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
            self._forget_ended(source, target)
            return
        _reset(source)
        _reset(target)
        self._forget_ended(source, target)

    def _hold(self, source: socket.socket, piece: bytes) -> bytes:
        """The piece and what came behind it, when that may go on."""
        pieces, size = [piece], len(piece)
        self.held.append(piece)
        while not self._flowing.wait(0.02):
            if size < _HELD_BYTES_MAX and select.select([source], [], [], 0)[0]:
                pieces.append(source.recv(_CHUNK))
                self.held.append(pieces[-1])
                size += len(pieces[-1]) or _HELD_BYTES_MAX  # It has ended.
        return b"".join(pieces)

    def _forget_ended(self, source: socket.socket, target: socket.socket) -> None:
        """The direction that ends last closes both ends."""
        ends = {source, target}
        with self._lock:
            if ends in self._half_ended:
                self._half_ended.remove(ends)
                self._pairs = [pair for pair in self._pairs if set(pair) != ends]
            else:
                self._half_ended.append(ends)
                return
        source.close()
        target.close()


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Wakes the thread that reads; closing alone would leave it there.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
