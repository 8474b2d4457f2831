"""The demo's course: a process is started, killed in the middle, started again, and ended."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fasti.cli.demo_facts import Facts, Verdict
from fasti.errors import FastiError

# What is shown while it runs: what goes on, how many arrived, and how many there are.
Show = Callable[[str, int, int], None]

_PATIENCE_S = 10.0


class _Child:
    """One life of the process. Its lines are read by a thread, so that it never has to wait."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "fasti.cli.demo_worker", *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def hear(self, facts: Facts, until: Callable[[], bool], timeout_s: float) -> bool:
        """Takes facts until something holds; False if the time was over first."""
        end = time.monotonic() + timeout_s
        while not until() and time.monotonic() < end:
            try:
                line = self._lines.get(timeout=0.02)
            except queue.Empty:
                continue
            if line is None:
                raise FastiError("the process of the demo ended by itself")
            facts.take(json.loads(line))
        return until()

    def kill(self, facts: Facts) -> None:
        """SIGKILL, in the middle of whatever it does; then takes what it had told before."""
        facts.killed_at_us = time.time_ns() // 1000
        self._process.kill()
        self._process.wait()
        self._reader.join()
        while (line := self._lines.get()) is not None:
            if line.endswith("\n"):
                facts.take(json.loads(line))

    def finish(self) -> None:
        """Asks it to end."""
        assert self._process.stdin is not None
        self._process.stdin.write("finish\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        """Makes sure that nothing of it is left."""
        if self._process.poll() is None:
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def run(directory: Path, near: int, far: int, seconds: float, show: Show) -> Verdict:
    """The whole story in a new directory."""
    begun = time.monotonic()
    facts = Facts()
    sizes = [str(near), str(far), str(int(seconds * 1_000_000))]
    _first_life(facts, [str(directory), "begin", *sizes], near + far, show)
    _second_life(facts, [str(directory), "resume", *sizes], seconds, show)
    verdict = facts.verdict()
    verdict.size_bytes = sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())
    verdict.seconds = round(time.monotonic() - begun, 3)
    return verdict


def _first_life(facts: Facts, arguments: list[str], total: int, show: Show) -> None:
    child = _Child(arguments)
    try:

        def scheduled() -> bool:
            show("scheduling", len(facts.due), total)
            return len(facts.due) >= total

        if not child.hear(facts, scheduled, _PATIENCE_S):
            raise FastiError("this machine is too slow to schedule so many messages: use --far")
        goal = facts.left_in_window

        def half_over() -> bool:
            show("delivering", len(facts.first_started), goal)
            return time.time_ns() // 1000 >= sum(facts.window) // 2

        child.hear(facts, half_over, _PATIENCE_S)
        show("killing the process", len(facts.first_started), goal)
        child.kill(facts)
    finally:
        child.leave()


def _second_life(facts: Facts, arguments: list[str], seconds: float, show: Show) -> None:
    child = _Child(arguments)
    try:
        goal = facts.left_in_window + len(facts.first_started)

        def all_arrived() -> bool:
            show("delivering after a new start", len(facts.first_started), goal)
            over = time.time_ns() // 1000 >= facts.window[1] + 500_000
            return len(facts.opened) == 2 and over and not facts.left_in_window

        child.hear(facts, all_arrived, seconds + _PATIENCE_S / 2)
        child.finish()
        show("counting what is left", len(facts.first_started), goal)
        if not child.hear(facts, lambda: bool(facts.closed), _PATIENCE_S):
            raise FastiError("the process of the demo did not end in time")
    finally:
        child.leave()
