"""What a broker's process tells by a pipe to whoever started it: that it is ready, and, where it is the
supervisor of several, what became of each of them. For one thread; nothing polls.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fasti.errors import TimedOut, Unavailable

_WAIT_S = 60.0
_LOOK_S = 0.001


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


class ServingProcess:
    """One of a broker's processes, whichever has its place now, for tests that end it."""

    def __init__(
        self, number: int, events: ProcessEvents, log_tail: Callable[[], str] = lambda: ""
    ) -> None:
        self.number = number
        self._events, self._log_tail = events, log_tail

    @property
    def pid(self) -> int:
        """Of the one that serves now. Raises `unavailable` if none does."""
        facts = self._events.facts(self.number)
        if facts.get("state") != "up":
            raise Unavailable(f"process {self.number} does not serve: {facts}\n{self._log_tail()}")
        return int(facts["pid"])

    def wait(self, other_than: int | None = None, timeout: float = _WAIT_S) -> int:
        """Returns the pid when it serves; with `other_than`, when that one was replaced."""

        def serves(facts: dict[str, Any]) -> bool:
            return facts.get("state") == "up" and facts["pid"] != other_than

        return int(self._wait(serves, timeout)["pid"])

    def wait_change(self, timeout: float = _WAIT_S) -> dict[str, Any]:
        """Returns what the supervisor says of it, when it says something the next time."""
        before = self._events.facts(self.number)
        return self._wait(lambda facts: facts is not before, timeout)

    def _wait(self, is_so: Callable[[dict[str, Any]], bool], timeout: float) -> dict[str, Any]:
        try:
            return self._events.wait(self.number, is_so, timeout)
        except TimeoutError:
            raise TimedOut(
                f"process {self.number} did not do so within {timeout:g} s\n{self._log_tail()}"
            ) from None

    def kill(self) -> int:
        """SIGKILL: it is started again; the pid that it had."""
        return self._signal(signal.SIGKILL)

    def pause(self) -> int:
        """SIGSTOP; its pid. Returns when it has stopped, where that can be seen."""
        pid = self._signal(signal.SIGSTOP)
        # It is no child of this process, so there is nothing to wait for.
        while _runs(pid):
            time.sleep(_LOOK_S)
        return pid

    def resume(self) -> int:
        """SIGCONT: goes on where it was; its pid."""
        return self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> int:
        pid = self.pid
        os.kill(pid, what)
        return pid


def _runs(pid: int) -> bool:
    """Whether a thread of a process is not stopped; False where the system doesn't tell."""
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.append(status.read_text().rpartition(") ")[2][0])
    return any(state not in "TtZX" for state in states)
