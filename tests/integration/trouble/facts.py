"""Facts: what worker processes tried and saw, told over a pipe while it happens.

A fact is a line of JSON: who, what, `at` (the machine's monotonic clock, which all processes share)
and whatever belongs to it. A worker tells what it is about to do *before* it does it and the answer
after, so that what is known when it is killed is never more than what happened.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

Fact = dict[str, Any]
# Taken before any worker lies to itself about the time.
_monotonic_ns, _time_ns = time.monotonic_ns, time.time_ns


def monotonic_us() -> int:
    return _monotonic_ns() // 1000


def wall_us() -> int:
    """The machine's clock, which is the broker's too."""
    return _time_ns() // 1000


class Teller:
    """A worker's side. Any thread may tell."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._lock = threading.Lock()

    def __call__(self, what: str, **facts: Any) -> None:
        with self._lock:
            fact = {"who": self.who, "what": what, "at": monotonic_us(), **facts}
            data = (json.dumps(fact) + "\n").encode()
            while data:
                data = data[os.write(1, data) :]


class Book:
    """The test's side: everything that was told, by everybody, and a way to wait for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._facts: list[Fact] = []

    def read(self, pipe: IO[bytes]) -> None:
        """Until the worker ends; a line that it could not finish counts for nothing."""
        for line in pipe:
            if line.endswith(b"\n"):
                self.add(json.loads(line))

    def add(self, fact: Fact) -> None:
        with self._changed:
            self._facts.append(fact)
            self._changed.notify_all()

    def save(self, path: Path) -> None:
        """The history, a fact a line."""
        with path.open("w") as file:
            file.writelines(json.dumps(fact) + "\n" for fact in self.all())

    def all(self, *what: str, **fields: Any) -> list[Fact]:
        """By the time at which they happened."""
        with self._changed:
            found = list(self._find(what, fields))
        return sorted(found, key=lambda fact: fact["at"])

    def _find(self, what: tuple[str, ...], fields: Fact, start: int = 0) -> Iterator[Fact]:
        for fact in self._facts[start:]:
            if (not what or fact["what"] in what) and all(
                fact.get(name) == value for name, value in fields.items()
            ):
                yield fact

    def __len__(self) -> int:
        return len(self._facts)

    def wait(self, enough: Callable[[], bool], timeout: float, why: str) -> None:
        """Returns when `enough()`, which is asked after every fact."""
        with self._changed:
            assert self._changed.wait_for(enough, timeout), f"waited in vain: {why}"

    def wait_for(
        self, *what: str, count: int = 1, timeout: float = 60.0, since: int = 0, **fields: Any
    ) -> list[Fact]:
        """The facts of a kind, as soon as there are so many, told after the first `since`."""
        found: list[Fact] = []
        place = since

        def enough() -> bool:
            nonlocal place
            found.extend(self._find(what, fields, place))
            place = len(self._facts)
            return len(found) >= count

        named = " or ".join(what) + f" {fields or ''}"
        with self._changed:
            came = self._changed.wait_for(enough, timeout)
        assert came, f"waited in vain for {count} × {named}: {len(found)} came"
        return found
