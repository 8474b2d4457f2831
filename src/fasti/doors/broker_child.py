"""One of several processes of a broker: how the supervisor starts it, hears of it and ends it.

It is `fasti serve` with `peers`, as a person could start it, and some more: it logs where the supervisor
does, with its number in each line; it tells by a pipe that it is ready, or why it can't be; and it stops
by itself when its stdin ends, that is, when the supervisor is gone, however that ended.

A thread waits for each process. Everything else here is for the supervisor's main thread.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fasti.errors import FastiError, Unavailable
from fasti.protocol.problems import error_from_json
from fasti.settings.peers import ProcessPlace, show_shards

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.2, 30.0
# One that ran for so long was well: the pauses begin anew.
_WELL_S = 60.0

# What a child does, as health and metrics tell it.
STARTING, UP, STOPPING, WAITING, ENDED = "starting", "up", "stopping", "waiting", "ended"


@dataclass(frozen=True, slots=True)
class ChildReport:
    """From the thread that waits for a process: what it said when it began to serve, or its exit code."""

    number: int
    said: dict[str, Any] | None = None
    code: int | None = None


class BrokerChild:
    """One place among the processes, and the process that has it now."""

    def __init__(
        self,
        number: int,
        place: ProcessPlace,
        flags: Sequence[str],
        environment: Mapping[str, str],
        inherited: Sequence[int],
        notice: Callable[[ChildReport], None],
    ) -> None:
        """`inherited` are descriptors that it keeps open; `notice` is called in other threads."""
        self.number, self.place = number, place
        self._flags, self._environment, self._inherited = flags, environment, inherited
        self._notice = notice
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.state = ENDED
        self.restarts = 0
        # How often it ended soon, one after the other.
        self.deaths = 0
        self.again_at: float | None = None
        self.recovery_seconds = 0.0
        self.error: FastiError | None = None

    @property
    def pid(self) -> int | None:
        """The process that has the place now."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether there is a process, ready or not."""
        return self._process is not None

    def facts(self) -> dict[str, Any]:
        """For the log, health, metrics and whoever started the supervisor."""
        return {
            "process": self.number,
            "shards": show_shards(self.place.shards),
            "state": self.state,
            "restarts": self.restarts,
            "deaths": self.deaths,
            "pid": self.pid,
        }

    # What the supervisor does

    def start(self) -> None:
        """Starts the process; `notice` tells the rest. Raises `OSError` if there can't be one."""
        readable, writable = os.pipe()
        try:
            self._process = subprocess.Popen(
                self._command(writable),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[writable, *self._inherited],
                env=self._environment,
                # Ctrl-C in a terminal is for the supervisor, which then ends this one.
                start_new_session=True,
            )
        except BaseException:
            os.close(readable)
            raise
        finally:
            os.close(writable)
        self.state, self._began = STARTING, time.monotonic()
        self.again_at, self.error = None, None
        threading.Thread(
            target=self._wait,
            args=(self._process, readable),
            name=f"fasti-process-{self.number}",
            daemon=True,
        ).start()

    def _command(self, ready_fd: int) -> list[str]:
        own = ["--until-stdin-ends", "--ready-fd", str(ready_fd)]
        own += ["--process-number", str(self.number)]
        return [sys.executable, "-m", "fasti", "serve", *own, *self._flags]

    def _wait(self, process: subprocess.Popen[bytes], readable: int) -> None:
        with os.fdopen(readable, "rb") as pipe:
            line = pipe.readline()
        if line.endswith(b"\n"):
            self._notice(ChildReport(self.number, said=json.loads(line)))
        self._notice(ChildReport(self.number, code=process.wait()))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Has it stop softly, or at once with SIGKILL; it is not started again meanwhile."""
        self.again_at = None
        if self._process is None:
            self.state = ENDED
            return
        # A second SIGTERM would end it at once.
        if self.state == STOPPING and number == signal.SIGTERM:
            return
        self.state = STOPPING
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    # What the supervisor heard

    def heard(self, said: dict[str, Any]) -> None:
        """It is ready, or can't be."""
        if "error" in said:
            self.error = error_from_json(said["error"])
        elif self.state == STARTING:
            self.state = UP
            self.recovery_seconds = float(said["recovery_seconds"])

    def ended(self) -> None:
        """There is no process any more."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
        self.state = ENDED

    def plan_restart(self) -> float:
        """After it has ended by itself: when it is to be started again; the pause until then."""
        well = time.monotonic() - self._began > _WELL_S
        self.deaths = 1 if well else self.deaths + 1
        # More would be more than a float can be.
        doublings = min(self.deaths - 1, 30)
        pause: float = min(_PAUSE_FIRST_S * 2**doublings, _PAUSE_MAX_S)
        self.restart_at(time.monotonic() + pause)
        return pause

    def restart_at(self, moment: float) -> None:
        """It is started again then."""
        self.restarts += 1
        self.again_at, self.state = moment, WAITING

    def why_not_ready(self, code: int) -> FastiError:
        """Why it ended before it was ready: in its own words, if it had any."""
        return self.error or Unavailable(
            f"process {self.number} ended before it was ready: {why(code)}"
        )


def why(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
