"""What the tests of apps in several processes share: a pipe by which handlers tell what they do."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

WAIT_S = 60.0


class Mailbox:
    """A named pipe: any process writes lines to it, the test reads them. Nobody polls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Open for writing as well, so that it does not end with a writer.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def line(self) -> str:
        """The next line."""
        until = time.monotonic() + WAIT_S
        while b"\n" not in self._rest:
            left = max(0.0, until - time.monotonic())
            assert select.select([self._descriptor], [], [], left)[0], "nobody told anything"
            self._rest += os.read(self._descriptor, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._descriptor)


def tell(path: str, *words: object) -> None:
    """For handlers: writes a line."""
    with open(path, "w") as pipe:
        pipe.write(" ".join(map(str, words)) + "\n")


def await_line(path: str) -> str:
    """For handlers: waits until the test writes to another pipe."""
    with open(path) as pipe:
        return pipe.readline()
