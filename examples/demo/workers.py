"""The demo's worker processes, seen from the process that started them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from examples.demo.traffic import Tell
from fasti.errors import FastiError

_PATIENCE_S = 30.0


class WorkerProcess:
    """One worker. What it tells is read by a thread of its own, so that it never has to wait."""

    def __init__(self, address: str, name: str, tell: Tell) -> None:
        self.name = name
        self._tell = tell
        command = [sys.executable, "-m", "examples.demo.worker", address, name]
        pipe = subprocess.PIPE
        # Ctrl-C in a terminal is for the demo, which then ends this one.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fact, *values = json.loads(line)
            if fact == "ready":
                self._ready.set()
            else:
                self._tell(fact, *values)

    def wait_until_ready(self) -> None:
        """Returns when it consumes."""
        if not self._ready.wait(_PATIENCE_S):
            raise FastiError(f"{self.name} did not start within {_PATIENCE_S:g} s")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def finish(self) -> None:
        """Asks it to give back what it has not started, and to end."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def leave(self) -> None:
        """Waits for its end; makes one if it doesn't come. Then all that it told was taken."""
        self.finish()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
