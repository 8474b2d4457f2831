"""What a broker's process tells by a pipe to whoever started it: that it is ready, and, where it is the
supervisor of several, what became of each of them. For one thread; nothing polls.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any


class ProcessEvents:
    """Lines of JSON. The first one says that it is ready, those that follow are about one process each."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._rest = b""
        self._facts: dict[int, dict[str, Any]] = {}

    def follow(self, descriptor: int) -> None:
        """Reads from this pipe, which is the owner's no more."""
        self.close()
        self._descriptor, self._rest, self._facts = descriptor, b"", {}

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None at the end. Raises `TimeoutError`."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            if self._descriptor < 0:
                return None
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(self._descriptor, 1 << 16)
            if not piece:
                self.close()
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def facts(self, number: int) -> dict[str, Any]:
        """The last word about a process, without waiting."""
        self._drain()
        return self._facts.get(number, {})

    def pids(self) -> list[int]:
        """Of all processes that run, without waiting."""
        self._drain()
        return [facts["pid"] for facts in self._facts.values() if facts["pid"] is not None]

    def wait(
        self, number: int, is_so: Callable[[dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        """What is said of a process as soon as it is so. Raises `TimeoutError`."""
        deadline = time.monotonic() + timeout_s
        while not is_so(facts := self._facts.get(number, {})):
            if not self._take(deadline - time.monotonic()):
                raise TimeoutError
        return facts

    def _drain(self) -> None:
        try:
            while self._take(0.0):
                pass
        except TimeoutError:
            return

    def _take(self, timeout_s: float) -> bool:
        said = self.read(timeout_s)
        if said is not None and "process" in said:
            self._facts[said["process"]] = said
        return said is not None

    def close(self) -> None:
        """Lets the pipe go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
