"""What the main thread of an app waits for: signals, and words of other threads.

A signal may reach any thread, also one that isn't Python's, and a main thread that waits for a lock
then never hears of it. So it waits for a socket, to which the interpreter writes whichever thread got
the signal.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Events:
    """Words, in their order. Any thread puts them, one takes them. SIGTERM and SIGINT: `signal`."""

    def __init__(self) -> None:
        self._words: deque[str] = deque()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def put(self, word: str) -> None:
        """From any thread, and from signal handlers."""
        self._words.append(word)
        # A full socket wakes the reader as well as one more byte would; a closed one has none.
        with suppress(BlockingIOError, OSError):
            self._theirs.send(b"\0")

    def get(self, timeout: float | None = None) -> str | None:
        """The next word; None if there is none in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if word := self.poll():
                return word
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            connection.wait([self._ours], left)

    def poll(self) -> str | None:
        """The next word, if there is one now."""
        with suppress(BlockingIOError):
            # Read first: a word that is put meanwhile wakes again.
            while self._ours.recv(4096):
                pass
        return self._words.popleft() if self._words else None

    def fileno(self) -> int:
        """For those who wait for other things as well: readable when there may be a word."""
        return self._ours.fileno()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Meanwhile signals become words, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        before = [signal.signal(number, lambda *_: self.put("signal")) for number in SIGNALS]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield
        finally:
            for number, handler in zip(SIGNALS, before, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *raised: object) -> None:
        # What is put afterwards is not heard.
        self._ours.close()
        self._theirs.close()


@contextmanager
def held_signals() -> Iterator[None]:
    """A process started meanwhile gets no signal before `Events.signals` there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
