"""One client process: `python -m benchmarks.peers.driver PEER ADDRESS QUEUE JOB {arguments}`.

It imports its client library and says `ready`, waits for a line, does its job and prints the result as
one line of JSON. `DriverProcess` is the other end. Only the standard library is used here.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.peers.client import Cannot
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.server import ROOT

Figures = dict[str, Any]
_READY_S = 30.0


class JobFailed(Exception):
    """A client process ended, or took longer than it may."""


class DriverProcess:
    """A job in a process of its own. It begins with `go`; `result` waits for what it found."""

    def __init__(
        self, python: str, adapter: str, address: str, queue: str, job: str, **arguments: Any
    ) -> None:
        self._name = f"{adapter}: {job}"
        command = [python, "-m", "benchmarks.peers.driver", adapter, address, queue, job]
        self._process = subprocess.Popen(
            [*command, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            # This build, whichever one the environment has installed.
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
        self._rest = b""
        try:
            self._line(_READY_S)
        except BaseException:
            self.kill()
            raise

    def go(self) -> None:
        """Lets it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def result(self, timeout_s: float) -> Figures:
        """What it found. Raises `JobFailed` when it takes longer, or ends with an error."""
        try:
            found: Figures = json.loads(self._line(timeout_s))
        finally:
            self.kill()
        if "cannot" in found and len(found) == 1:
            raise Cannot(found["cannot"])
        return found

    def kill(self) -> None:
        """Ends it, in the middle or not; its pipes go with it."""
        self._process.kill()
        self._process.communicate()

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                raise JobFailed(f"{self._name} took longer than {timeout_s:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 65_536)
            if not piece:
                _, errors = self._process.communicate()
                raise JobFailed(f"{self._name} ended:\n{errors.decode(errors='replace')[-1_500:]}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def main() -> None:
    """One client, in this process."""
    adapter, address, queue, job, arguments = sys.argv[1:]
    module = import_module(f"benchmarks.peers.adapters.{adapter}")
    # The queue is there, and the client library is loaded, before anything is timed.
    module.connect(address, queue).close()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        found = JOBS[job](lambda: module.connect(address, queue), **json.loads(arguments))
    except Cannot as why:
        found = {"cannot": str(why)}
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
