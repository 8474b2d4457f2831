"""The same for several shards at once: each in a thread of its own, the last in the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from fasti.errors import FastiError
from fasti.runtime import Runtime

# More than so many threads at once bring nothing: the shards beyond wait for one.
_THREADS_MAX = 16

A = TypeVar("A")
R = TypeVar("R")


def each(runtime: Runtime, run: Callable[[A], R], things: Sequence[A]) -> list[R | FastiError]:
    """What `run` answers for each, in their order: a `FastiError` that it raised is an answer too.

    Anything else that it raises is raised here, when all have ended.
    """
    answers: dict[int, R | FastiError] = {}
    failures: list[BaseException] = []
    waiting = list(enumerate(things))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, thing = waiting.pop()
            try:
                answers[number] = run(thing)
            except FastiError as error:
                answers[number] = error
            except BaseException as error:
                failures.append(error)
                return

    count = min(len(things), _THREADS_MAX) - 1
    threads = [runtime.thread("fasti-shards", work) for _ in range(count)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(things))]
