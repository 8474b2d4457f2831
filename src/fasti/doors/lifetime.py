"""What a process that serves says when it is ready, what it waits for, and how it ends.

Used by the broker's process and by the supervisor of several, and loads nothing that takes long.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fasti.settings.values import Address

_log = logging.getLogger("fasti.broker")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Ready:
    """Said once everything answers."""

    listen: Address
    http: Address | None
    pid: int
    recovery_seconds: float

    def to_json(self) -> str:
        """For the process that started this one and waits."""
        http = None if self.http is None else str(self.http)
        facts = {"listen": str(self.listen), "http": http, "pid": self.pid}
        return json.dumps({**facts, "recovery_seconds": self.recovery_seconds})


class Asks:
    """What the main thread waits for, in the order in which it came.

    The kernel may give a signal to any thread, and then a main thread that waits for a lock never
    hears of it: so it waits for a pipe, into which the interpreter writes with every signal.
    """

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)

    def put(self, word: str) -> None:
        """From any thread, and from signal handlers."""
        self._words.put(word)
        # A full pipe wakes the reader as well as one more byte would.
        with suppress(BlockingIOError):
            os.write(self._writable, b"\0")

    def next(self) -> str:
        """Waits. For the main thread."""
        while self._words.empty():
            os.read(self._readable, 4096)
        return self._words.get()

    def next_within(self, timeout_s: float | None) -> str | None:
        """Waits for so long at most; None if nothing came. For the main thread."""
        if self._words.empty() and select.select([self._readable], [], [], timeout_s)[0]:
            os.read(self._readable, 4096)
        try:
            return self._words.get_nowait()
        except queue.Empty:
            return None

    def listen_to_signals(self, *more: signal.Signals) -> None:
        """SIGTERM, SIGINT and these become words."""
        signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        for number in (*_SIGNALS, *more):
            signal.signal(number, lambda n, _: self.put(signal.Signals(n).name))

    def when_ended(self, wait: Callable[[], None], word: str) -> None:
        """Puts the word when the function returns, which runs in a thread of its own."""

        def run() -> None:
            try:
                wait()
            except Exception:
                _log.exception("the broker failed while it ended")
            self.put(word)

        threading.Thread(target=run, name="fasti-watch", daemon=True).start()


def read_stdin_to_its_end() -> None:
    """Returns when the process that started this one is gone, if it kept the other end to itself."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass


def end(code: int) -> None:
    """Ends the process now: gRPC's threads may wait for clients that will never answer."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
