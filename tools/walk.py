"""Follows one message from `send` to `ack` through the files of `src/fasti`.

    .venv/bin/python tools/walk.py

A broker is embedded in this process, a producer and a consumer are open and have had their first
messages. Then one message is sent, received and acked, and every Python function that is called
meanwhile is noted with its file, in all threads that a message passes. docs/architecture.md has the walk
as a table; `tests/integration/test_walk.py` compares the two.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import fasti

SRC = Path(fasti.__file__).parent
# Threads that a message passes beside the caller's; others look after the broker at their own times.
THREADS = (
    "fasti-send",
    "fasti-receipts",
    "fasti-sequencer",
    "fasti-committer",
    "fasti-session",
    "fasti-consume",
)
_WARM_UP = 20


class Notes:
    """Which functions were called in `threads`: by file, in the order of first calls."""

    def __init__(self) -> None:
        self.threads: tuple[str, ...] = ()
        self.calls: dict[str, Counter[str]] = {}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`, in every thread."""
        if event == "call" and threading.current_thread().name.startswith(self.threads):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SRC):
                name = path.relative_to(SRC).as_posix()
                self.calls.setdefault(name, Counter())[frame.f_code.co_qualname] += 1


def follow(directory: str) -> dict[str, Counter[str]]:
    """The calls of one message's walk, on a broker that keeps its data there."""
    notes = Notes()
    passed = (threading.current_thread().name, *THREADS)
    threading.setprofile(notes.profile)
    sys.setprofile(notes.profile)
    try:
        with fasti.connect(f"embedded:{directory}") as client:
            client.create_topic("walk")
            with client.producer("walk") as producer, client.consumer("walk") as consumer:
                messages = iter(consumer)
                for number in range(_WARM_UP + 1):
                    notes.threads = passed if number == _WARM_UP else ()
                    producer.send(b"hello").result()
                    next(messages).ack()
                    # What waits for the ack's way is not on it.
                    notes.threads = notes.threads[1:]
                    consumer.flush()
                notes.threads = ()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return notes.calls


def main() -> None:
    """Prints the files, and what was called in each."""
    with tempfile.TemporaryDirectory() as directory:
        calls = follow(directory)
    for file, names in calls.items():
        sys.stdout.write(f"{file}: {', '.join(names)}\n")
    sys.stdout.write(f"{len(calls)} files\n")


if __name__ == "__main__":
    main()
