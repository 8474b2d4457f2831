"""A process of `fasti cluster up`: a NATS server or a broker, whichever process has its place now.

A thread waits for each process, and tells; everything else is for the main thread, which must be the one that
starts them (`nats_servers.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from fasti.doors.broker_child import why

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 10.0
# One that ran for so long was well: the pauses begin anew.
_WELL_S = 30.0
_TAIL_BYTES = 4_096


class ClusterChild:
    """`command` is called with the descriptor by which it may tell that it is ready, when it serves."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], list[str]],
        log: Path,
        notice: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        """`notice` is called in other threads, with `ready NAME` and `ended NAME`."""
        self.name, self.log = name, log
        self._command, self._notice, self._environment = command, notice, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        # How often it ended soon, one after the other.
        self.deaths = 0
        self.again_at: float | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns at once. Raises `OSError` if there can't be a process."""
        self.again_at, self._began = None, time.monotonic()
        readable, writable = os.pipe()
        pipe = os.fdopen(readable, "rb")
        try:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    self._command(writable),
                    # Its end tells a broker that this process is gone.
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[writable],
                    env=self._environment,
                    # Ctrl-C in a terminal is for this process, which then ends that one.
                    start_new_session=True,
                )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(writable)
        threading.Thread(
            target=self._wait, args=(self._process, pipe), name=f"fasti-{self.name}", daemon=True
        ).start()

    def _wait(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        with pipe:
            if pipe.readline().endswith(b"\n"):
                self._notice(f"ready {self.name}")
        process.wait()
        self._notice(f"ended {self.name}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Has it stop softly, or at once with SIGKILL."""
        self.again_at = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def take_end(self) -> str:
        """There is no process any more; why, in one line."""
        process, self._process = self._process, None
        assert process is not None
        if process.stdin is not None:
            process.stdin.close()
        words = self._last_words()
        return f"{self.name} ended ({why(process.wait())}){': ' + words if words else ''}"

    def join(self, within_s: float) -> bool:
        """Waits until the process has ended, and takes that in; False if it goes on."""
        if self._process is None:
            return True
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        self.take_end()
        return True

    def plan_restart(self) -> float:
        """After it has ended by itself: the pause until it is to be started again."""
        well = time.monotonic() - self._began > _WELL_S
        self.deaths = 1 if well else self.deaths + 1
        pause_s: float = min(_PAUSE_FIRST_S * 2 ** min(self.deaths - 1, 10), _PAUSE_MAX_S)
        self.again_at = time.monotonic() + pause_s
        return pause_s

    def _last_words(self) -> str:
        """The error that it ended with, if its log has one at its end."""
        with suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            last = lines[-1] if lines else ""
            if last.startswith("error ") or "[FTL]" in last:
                return last
        return ""
