"""Several processes that each run the same app, and one that looks after them.

Workers are spawned and import the app by its name. One that dies is started again, with pauses that
grow while it dies soon. Each has a pipe from the supervisor: by it it is told to stop, or to stop at
once, and when the supervisor is gone, however that ended, the pipe ends and the worker stops by itself.
Workers are in sessions of their own, so that Ctrl-C in a terminal reaches the supervisor alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from fasti.app.events import Events, held_signals
from fasti.app.reach import Reach
from fasti.errors import FastiError

logger = logging.getLogger("fasti.app")

_SPAWN = multiprocessing.get_context("spawn")
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 30.0
# One that lived this long was well: its next pause is the first again.
_WELL_S = 60.0
# After the grace: for connections and hooks to end.
_MARGIN_S = 15.0
_FAILED = 1


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What each worker runs."""

    reference: str
    reach: Reach = field(default_factory=Reach)
    concurrency: int | None = None
    grace_s: float = 30.0
    # The level and form of logs, where the command line has set them up.
    log: tuple[str, str] | None = None


class WorkerProcess:
    """One place among the workers, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: SpawnProcess | None = None
        self.pipe: Any = None
        self.began = 0.0
        self.deaths = 0
        self.again_at: float | None = 0.0
        self.code = 0

    def start(self, plan: WorkerPlan) -> None:
        """Spawns the process."""
        theirs, self.pipe = _SPAWN.Pipe(duplex=False)
        self.process = _SPAWN.Process(
            target=work, args=(plan, self.number, theirs), name=f"fasti-worker-{self.number}"
        )
        with held_signals():
            self.process.start()
        theirs.close()
        self.began, self.again_at = time.monotonic(), None

    def tell(self, word: str) -> None:
        """Says `stop` or `now`."""
        if self.pipe is not None:
            with suppress(OSError):
                self.pipe.send(word)

    def ended(self, stopping: bool) -> None:
        """The process has ended: well, or it is to be started again."""
        process = self.process
        assert process is not None
        process.join()
        self.code = process.exitcode or 0
        process.close()
        self.process = None
        self.pipe.close()
        if stopping or self.code == 0:
            self.again_at = None
            return
        if time.monotonic() - self.began > _WELL_S:
            self.deaths = 0
        pause = min(_PAUSE_FIRST_S * 2**self.deaths, _PAUSE_MAX_S)
        self.deaths += 1
        self.again_at = time.monotonic() + pause
        why = f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        logger.error("worker %d died (%s); starting another in %g s", self.number, why, pause)


def supervise(plan: WorkerPlan, workers: int) -> None:
    """Runs until all workers have ended, because they were told to or by their own will.

    For the main thread, whose signals it takes meanwhile.
    """
    team = [WorkerProcess(number) for number in range(workers)]
    signals = 0
    deadline: float | None = None
    # Started before any signal is held back: it would let them through.
    resource_tracker.ensure_running()
    with Events() as events, events.signals():
        while True:
            if not signals:
                _start_due(team, plan)
            if not any(worker.process or worker.again_at is not None for worker in team):
                return
            _wait(team, events, deadline)
            while events.poll():
                signals += 1
                deadline = time.monotonic() + (plan.grace_s if signals == 1 else 0) + _MARGIN_S
                logger.info(
                    "telling %d workers to stop%s", workers, "" if signals == 1 else " at once"
                )
                for worker in team:
                    worker.tell("stop" if signals == 1 else "now")
            for worker in team:
                if worker.process is not None and not worker.process.is_alive():
                    worker.ended(stopping=signals > 0)
                if signals:
                    worker.again_at = None
            if deadline is not None and time.monotonic() >= deadline:
                _kill(team)


def _start_due(team: list[WorkerProcess], plan: WorkerPlan) -> None:
    for worker in team:
        if worker.again_at is not None and worker.again_at <= time.monotonic():
            worker.start(plan)


def _wait(team: list[WorkerProcess], events: Events, deadline: float | None) -> None:
    moments = [worker.again_at for worker in team if worker.again_at is not None]
    moments += [deadline] if deadline is not None else []
    left = max(0.0, min(moments) - time.monotonic()) if moments else None
    sentinels = [worker.process.sentinel for worker in team if worker.process is not None]
    connection.wait([*sentinels, events.fileno()], left)


def _kill(team: list[WorkerProcess]) -> None:
    for worker in team:
        if worker.process is not None:
            logger.error("worker %d did not stop and was killed", worker.number)
            worker.process.kill()
            worker.ended(stopping=True)


# In the worker


def work(plan: WorkerPlan, number: int, pipe: Any) -> None:
    """The life of a worker: runs the app until it is told to stop."""
    from fasti.app.foreground import run_here
    from fasti.app.loading import load

    os.setsid()
    if plan.log is not None:
        from fasti.broker.logs import set_up

        set_up(*plan.log)
    events = Events()
    threading.Thread(target=_listen, args=(pipe, events), name="fasti-pipe", daemon=True).start()
    try:
        # Signals are held since before this process began.
        with events.signals():
            app = load(plan.reference)
            app.use(plan.reach)
            app.grace_s = plan.grace_s
            run_here(app, events, concurrency=plan.concurrency, worker=number, supervised=True)
    except FastiError as error:
        logger.error("worker %d: %s: %s", number, error.code, error.message)
        sys.exit(_FAILED)


def _listen(pipe: Any, events: Events) -> None:
    while True:
        try:
            events.put(pipe.recv())
        except (EOFError, OSError):
            # The supervisor is gone.
            events.put("stop")
            return
