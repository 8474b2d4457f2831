"""A broker in a process of its own, started and ended from Python.

For tests, `fasti demo` and `fasti bench`: it starts `fasti serve` on any free port, returns when
the broker has said that it is ready (over a pipe: nothing polls), and lets the caller kill it, stop
it, pause it and start it again on the same data and the same port, which is kept for it meanwhile: no
other process is given it. A broker whose starter is gone, however that ended, stops by itself.

A broker of several processes is started as one and stopped as one; `process(number)` is one of them.

Not thread-safe: one thread starts and ends.
"""

from __future__ import annotations

import os
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

from fasti.broker.ports import reserve
from fasti.broker.process_events import ProcessEvents, ServingProcess
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
        shards: int | None = None,
        processes: int = 1,
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        started: bool = True,
    ) -> None:
        self.data = Path(data)
        self._listen, self._http = listen, http
        self._settings = dict(settings or {})
        if shards is not None:
            self._settings["shards"] = shards
        if processes > 1:
            self._settings["processes"] = processes
        self._events = ProcessEvents()
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
        self._listen = self._with_ports(self._listen, int(self._settings.get("processes", 1)))
        self._http = self._with_ports(self._http)
        readable, writable = os.pipe()
        self._events.follow(readable)
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
        finally:
            os.close(writable)
        ready = self._wait_ready(timeout)
        self.start_seconds = time.monotonic() - begin
        self.recovery_seconds = ready["recovery_seconds"]
        self._listen, self._http = ready["listen"], ready["http"] or "off"

    def _with_ports(self, place: str, count: int = 1) -> str:
        """The same address; if any port will do, with one that is kept for this broker, as those are that
        follow it for its other processes.
        """
        if place == "off" or (address := read_address(place)).port != 0:
            return place
        try:
            kept = reserve(address, count)
        except OSError:
            return place  # The broker says what is wrong with it.
        self._reservations += kept
        return str(Address(address.host, kept[0].getsockname()[1]))

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

    def _wait_ready(self, timeout: float) -> dict[str, Any]:
        try:
            ready = self._events.read(timeout)
        except TimeoutError:
            self.kill()
            raise TimedOut(
                f"the broker was not ready within {timeout:g} s\n{self._log_tail()}"
            ) from None
        if ready is None:
            raise self._why_it_ended()
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

    def kill(self, supervisor_only: bool = False) -> None:
        """SIGKILL: as if the process had crashed; of several, all of them, or only the one that looks
        after the others, which then stop by themselves.
        """
        others = [] if supervisor_only else self._events.pids()
        process = self._running()
        # It first: it would start the others again.
        process.kill()
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
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

    # Several processes

    def process(self, number: int) -> ServingProcess:
        """One of the broker's processes."""
        return ServingProcess(number, self._events, self._log_tail)

    def restart_processes(self) -> None:
        """SIGHUP: all are started anew, one after the other. Returns at once."""
        self._running().send_signal(signal.SIGHUP)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Unavailable(f"the broker does not run\n{self._log_tail()}")
        return self._process

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
        self._events.close()

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
