"""A door in front of one NATS server that can hold back what the server answers, and hang up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class AnswerProxy:
    """Passes bytes on both ways. After `hold` answers stay here, until `hang_up` drops them for good."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hold(self) -> None:
        self._open.clear()

    def hang_up(self) -> None:
        """Ends all connections with what was held; new ones work."""
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.set()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for source, sink, answers in ((client, server, False), (server, client, True)):
                thread = threading.Thread(
                    target=self._pass_on, args=(source, sink, answers), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers:
                    self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
