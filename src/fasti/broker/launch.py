"""A broker in a process of its own, started and ended from Python.

For tests, `fasti demo` and `fasti bench`: it starts `fasti serve` on any free port, returns when
the broker has said that it is ready (over a pipe: nothing polls), and lets the caller kill it, stop
it, pause it and start it again on the same data and the same port, which is kept for it meanwhile: no
other process is given it. A broker whose starter is gone, however that ended, stops by itself.

Not thread-safe: one thread starts and ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fasti.errors import FastiError, TimedOut, Unavailable, error_from_code
from fasti.settings.declared import BY_KEY, SETTINGS
from fasti.settings.load import CONFIG_VARIABLE
from fasti.settings.values import Address, Switch, read_address

_START_S = 60.0
_STOP_S = 60.0
_LOG_TAIL_BYTES = 8_192


class BrokerProcess:
    """Starts at once, or with `start()` when `started=False`. A context manager that stops it."""

    def __init__(
        self,
        data: str | os.PathLike[str],
        *,
        listen: str = "127.0.0.1:0",
        http: str = "off",
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        started: bool = True,
    ) -> None:
        self.data = Path(data)
        self._listen, self._http = listen, http
        self._settings = dict(settings or {})
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._reservations: list[socket.socket] = []
        # What the broker reported when it was ready.
        self.recovery_seconds = 0.0
        self.start_seconds = 0.0
        if started:
            try:
                self.start()
            except BaseException:
                self._let_go()
                raise

    # What it is

    @property
    def address(self) -> str:
        """For `fasti.connect`. It stays the same over restarts."""
        scheme = "fasti+tls" if "tls_cert" in self._settings else "fasti"
        return f"{scheme}://{self._listen}"

    @property
    def host(self) -> str:
        """The host of the address."""
        return read_address(self._listen).host

    @property
    def port(self) -> int:
        """The port of the address."""
        return read_address(self._listen).port

    @property
    def http(self) -> str | None:
        """The root of its HTTP port, if it has one."""
        scheme = "https" if "tls_cert" in self._settings else "http"
        return None if self._http == "off" else f"{scheme}://{self._http}"

    @property
    def pid(self) -> int:
        """The running process."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What it wrote to stderr so far, all starts together."""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode()

    # Starting

    def start(self, timeout: float = _START_S) -> None:
        """Returns when it is ready. Raises the error that it ended with instead."""
        assert not self.running, "it runs already"
        begin = time.monotonic()
        self._listen, self._http = self._with_port(self._listen), self._with_port(self._http)
        readable, writable = os.pipe()
        try:
            self._process = subprocess.Popen(
                self._command(writable),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[writable],
                env=self._environment(),
                # Ctrl-C in a terminal is for the process that started it, which then ends it.
                start_new_session=True,
            )
            os.close(writable)
            writable = -1
            ready = self._wait_ready(readable, timeout)
        finally:
            os.close(readable)
            if writable >= 0:
                os.close(writable)
        self.start_seconds = time.monotonic() - begin
        self.recovery_seconds = ready["recovery_seconds"]
        self._listen, self._http = ready["listen"], ready["http"] or "off"

    def _with_port(self, place: str) -> str:
        """The same address; if any port will do, with one that is kept for this broker.

        Bound, but not listened at: the system gives it to no other process, also while the broker is
        away, and the broker may listen there because both allow the address to be used again.
        """
        if place == "off" or (address := read_address(place)).port != 0:
            return place
        try:
            addresses = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
            reservation = socket.socket(addresses[0][0], socket.SOCK_STREAM)
        except OSError:
            return place  # The broker says what is wrong with it.
        try:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(addresses[0][4])
        except OSError:
            reservation.close()
            return place
        self._reservations.append(reservation)
        return str(Address(address.host, reservation.getsockname()[1]))

    def _command(self, ready_fd: int) -> list[str]:
        given = {**self._settings, "data": self.data, "listen": self._listen, "http": self._http}
        command = [sys.executable, "-m", "fasti", "serve", "--until-stdin-ends"]
        command += ["--ready-fd", str(ready_fd)]
        for key, value in given.items():
            setting = BY_KEY[key]
            if isinstance(setting.kind, Switch):
                command += [setting.flag] if value else []
            else:
                command += [setting.flag, str(value)]
        return command

    def _environment(self) -> dict[str, str]:
        """Without settings of the user's shell: they are not meant for this one."""
        not_meant = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
        rest = {name: value for name, value in os.environ.items() if name not in not_meant}
        return {**rest, **self._env}

    def _wait_ready(self, readable: int, timeout: float) -> dict[str, Any]:
        line = b""
        deadline = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([readable], [], [], left)[0]:
                self.kill()
                raise TimedOut(f"the broker was not ready within {timeout:g} s\n{self._log_tail()}")
            piece = os.read(readable, 4096)
            if not piece:
                raise self._why_it_ended()
            line += piece
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _why_it_ended(self) -> FastiError:
        self._running().wait()
        self._forget()
        for line in reversed(self.log().splitlines()):
            if line.startswith("error "):
                code, _, message = line.removeprefix("error ").partition(": ")
                return error_from_code(code, message)
        return Unavailable(f"the broker ended before it was ready\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log()[-_LOG_TAIL_BYTES:]

    # Ending

    def kill(self) -> None:
        """SIGKILL: as if the process had crashed."""
        process = self._running()
        process.kill()
        process.wait()
        self._forget()

    def stop(self, timeout: float = _STOP_S) -> int:
        """SIGTERM, and waits; the exit code. Fine if it has ended already."""
        if self._process is None:
            return 0
        process = self._process
        # One that was paused takes the signal when it goes on.
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                process.send_signal(number)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimedOut(
                f"the broker did not stop in {timeout:g} s\n{self._log_tail()}"
            ) from None
        self._forget()
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit code when it has ended by itself."""
        code = self._running().wait(timeout)
        self._forget()
        return code

    def restart(self, timeout: float = _START_S) -> None:
        """Stops it softly and starts it again, same data, same port."""
        self.stop()
        self.start(timeout)

    def pause(self) -> None:
        """SIGSTOP: it is there but does nothing, like a machine that hangs. Returns when it does."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: goes on where it was."""
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Unavailable(f"the broker does not run\n{self._log_tail()}")
        return self._process

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def close(self) -> None:
        """Stops it, if it runs, and lets its log and its ports go."""
        try:
            self.stop()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._log.close()
        for reservation in self._reservations:
            reservation.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
