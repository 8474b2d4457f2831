"""Servers of peers: processes of their own on the loopback, in a directory that is deleted after.

A server that is not being measured is stopped by SIGSTOP, so that its housekeeping costs the others
nothing. Not thread-safe.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
PEERS_VENV = ROOT / ".peers-venv"
_START_S = 60.0
_STOP_S = 30.0
_PAUSE_S = 0.01
_PR_SET_PDEATHSIG = 1


class NotStarted(Exception):
    """A server did not come up; the text has the end of its log."""


class Server:
    """One server. Subclasses say the command; `start` returns when it takes connections."""

    # What `apt-get install` calls it; "" when it comes from the Python registry.
    package = ""
    # The program, as a name to look up or as a path.
    program = ""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory, self.settings = directory, settings
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = open(directory / "server.log", "ab")  # noqa: SIM115

    # What a peer says

    @classmethod
    def executable(cls) -> str | None:
        """Where the program is, or None."""
        return shutil.which(cls.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")

    @classmethod
    def missing(cls) -> str | None:
        """Why it can't be started here, with the command that installs it; None if it can."""
        if cls.executable() is None:
            return f"{cls.program} is not installed: apt-get install {cls.package}"
        return None

    @classmethod
    def version(cls) -> str:
        """As the program says it."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """For `connect` of the same adapter."""
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """What to run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Besides that of this process."""
        return {}

    def prepare(self) -> None:
        """Before each start."""

    def user(self) -> str | None:
        """Whom to run it as when this process is root."""
        return None

    def answers(self) -> bool:
        """Whether it is ready. By default: whether its port takes connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    # Starting and ending

    def start(self) -> None:
        """On the same data and port as before, if there was a before."""
        self.prepare()
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **self.environment()},
            cwd=self.directory,
            user=self.user() if os.getuid() == 0 else None,
            start_new_session=True,
            preexec_fn=_end_with_starter,
        )
        deadline = time.monotonic() + _START_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotStarted(f"{self.program} did not start:\n{self.log_tail()}")
            time.sleep(_PAUSE_S)

    def pids(self) -> list[int]:
        """Its process and those under it."""
        return [] if self._process is None else descendants(self._process.pid)

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL to all of its processes, as in a crash."""
        # First all stand still, so that none starts another meanwhile.
        self.pause()
        _end(_processes(self.pids()))
        if self._process is not None:
            self._process.wait()
        self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left; fine if it doesn't run."""
        if self._process is None:
            return
        processes = _processes(self.pids())
        self.resume()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        _end(processes)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Stops it and lets its log go; the directory is the caller's."""
        self.stop()
        self._log.close()

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return (self.directory / "server.log").read_text(errors="replace")[-2_000:]

    # What it uses

    def memory_bytes(self) -> int:
        """Memory that is not a file's, of all its processes; shared pages count once."""
        anonymous, shared = 0, 0
        for pid in self.pids():
            status = _status(pid)
            anonymous += status.get("RssAnon", 0)
            shared = max(shared, status.get("RssShmem", 0))
        return (anonymous + shared) * 1024

    def disk_bytes(self) -> int:
        """What its directory takes on the disk."""
        total = 0
        for folder, _, files in os.walk(self.directory):
            for name in files:
                with suppress(FileNotFoundError):
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
        return total


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """A process and all under it that live, the process itself first; [] if it doesn't."""
    children: dict[int, list[int]] = {}
    living = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                living.add(int(entry.name))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid] if pid in living else []
    while waiting:
        current = waiting.pop()
        found.append(current)
        waiting += children.get(current, [])
    return found


def _end_with_starter() -> None:
    """In a new process: it is killed when the benchmark dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def user_exists(name: str) -> bool:
    """Whether this machine has such an account."""
    with suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def output(*command: str) -> str:
    """What a program prints, without its errors; "" if it can't be run."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (done.stdout or done.stderr).strip()
    return ""


def _status(pid: int) -> dict[str, int]:
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.startswith("Rss"):
                found[name] = int(value.split()[0])
    return found


def _processes(pids: list[int]) -> dict[int, str]:
    """Processes with when each began, so that a number that was given again is not taken for it."""
    return {pid: began for pid in pids if (began := _began(pid)) is not None}


def _began(pid: int) -> str | None:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def _end(processes: dict[int, str]) -> None:
    """SIGKILL to those that still live; returns when they are gone."""
    for pid, began in processes.items():
        if _began(pid) == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _STOP_S
    while any(_began(pid) == began for pid, began in processes.items()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes did not end: {processes}")
        time.sleep(_PAUSE_S)
