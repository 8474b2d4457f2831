"""Keeps the HTTP process running: starts it, starts it again when it dies, ends it.

The listening socket is the broker's own and is handed down, so the port is known and taken before
the process is there, stays the same when it is replaced, and a caller that comes in between waits
instead of being refused. One thread, which sleeps until the process ends; what keeps it from starting
another one, such as a lack of memory, is tried again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fasti.broker.logs import fields
from fasti.broker.threads import Threads
from fasti.settings.values import Address

_log = logging.getLogger("fasti.doors.http")
_PAUSE_S = 0.2
_PAUSE_MAX_S = 30.0
# One that ran for so long was well: the pauses begin anew.
_WELL_S = 60.0
_END_S = 2.0


class HttpChild:
    """`orders` are what http_process.py reads, but for the socket."""

    def __init__(
        self, listener: socket.socket, orders: Mapping[str, Any], threads: Threads
    ) -> None:
        self._listener = listener
        self._orders = {**orders, "descriptor": listener.fileno()}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # The last word about each process of the broker, for one that is started later.
        self._facts: dict[int, bytes] = {}
        self._restarts = False
        self._worker = threads.worker("fasti-http", self._keep)

    @property
    def address(self) -> Address:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return Address(host, port)

    @property
    def pid(self) -> int | None:
        """The process that serves now."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        self._worker.start()

    def tell(self, number: int, facts: Mapping[str, Any]) -> None:
        """What a process of the broker does now, where there are several. Never waits: a word that finds
        no room is lost, and the next one tells more.
        """
        line = json.dumps(facts).encode() + b"\n"
        with self._lock:
            self._facts[number] = line
            process = self._process
            if process is not None and process.stdin is not None:
                with suppress(OSError, ValueError):
                    os.set_blocking(process.stdin.fileno(), False)
                    os.write(process.stdin.fileno(), line)

    def restart(self) -> None:
        """Has another process take over, which reads certificates anew. The port stays."""
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None and not self._ending.is_set():
                self._restarts = True
                with suppress(OSError):
                    process.stdin.close()

    def stop(self) -> None:
        """Ends it, softly if it lets us."""
        with self._lock:
            self._ending.set()
            process = self._process
            if process is not None and process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._worker.join()
        self._listener.close()

    def _keep(self) -> None:
        pause = _PAUSE_S
        while not self._ending.is_set():
            begin = time.monotonic()
            process = self._spawn()
            if process is None:
                return
            self._worker.idle()
            code = process.wait()
            if self._ending.is_set():
                return
            if self._restarts:
                self._restarts, pause = False, _PAUSE_S
                continue
            pause = _PAUSE_S if time.monotonic() - begin > _WELL_S else min(pause * 2, _PAUSE_MAX_S)
            details = fields(code=code, again_in_s=pause)
            _log.warning("the HTTP process ended and will be started again", extra=details)
            self._ending.wait(pause)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._ending.is_set():
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "fasti.doors.http_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[self._listener.fileno()],
                # Ctrl-C in a terminal is for the broker, which then ends this one.
                start_new_session=True,
            )
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(json.dumps(self._orders).encode() + b"\n")
                for line in self._facts.values():
                    process.stdin.write(line)
                process.stdin.flush()
            self._process = process
            return process
