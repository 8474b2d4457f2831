"""Worker processes, and one place that starts and ends everything of a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.integration.trouble.facts import Book

ROOT = Path(__file__).parents[3]
END_S = 120.0


def _python_path() -> str:
    """The tests, and whatever the test itself was told: it may be about another checkout's Fasti."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Worker:
    """A process that runs one of the workers' modules and tells facts."""

    def __init__(
        self, book: Book, module: str, who: str, stderr: IO[bytes] | None = None, **options: Any
    ) -> None:
        self.who = who
        self._book = book
        # What a worker says goes to a file: a pipe that nobody reads would stop it.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"tests.integration.trouble.{module}",
                json.dumps({"who": who, **options}),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": _python_path(), "PYTHONFAULTHANDLER": "1"},
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=book.read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def order(self, word: str) -> None:
        """One line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Asks it to finish, and returns when it has: all that it told is in the book then."""
        self.order("stop")
        code = self._process.wait(END_S)
        self._gone()
        assert code == 0, f"{self.who} ended with {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._gone()

    def pause(self) -> None:
        """Returns when the process has really stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _gone(self) -> None:
        self._reader.join(END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def end(self) -> None:
        """However the test went."""
        if self.running:
            self._process.kill()
            self._process.wait()
        self._gone()


class Crew:
    """The workers of a test."""

    def __init__(self, address: str) -> None:
        self.book = Book()
        self.address = address
        self.workers: list[Worker] = []
        # Where workers write what goes wrong with them; None: where the test does.
        self.stderr: IO[bytes] | None = None

    def start(self, module: str, who: str, **options: Any) -> Worker:
        options.setdefault("address", self.address)
        worker = Worker(self.book, module, who, self.stderr, **options)
        self.workers.append(worker)
        return worker

    def all_ready(self, timeout: float = 120.0) -> None:
        self.book.wait_for("ready", count=len(self.workers), timeout=timeout)


@contextmanager
def crew(address: str) -> Iterator[Crew]:
    made = Crew(address)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.end()
