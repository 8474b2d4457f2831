"""Running an app in this process until it is told to stop, by a signal or by its supervisor.

The main thread only waits for events: signals, words of the supervisor, the app's own end. Signal
handlers do nothing but put an event into a `SimpleQueue`, which is made to be used from them.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.app.app import App

logger = logging.getLogger("fasti.app")

Event = Literal["signal", "stop", "now", "ended"]
Events = queue.SimpleQueue[Any]
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.2, 10.0


def run_here(
    app: App,
    events: Events,
    *,
    concurrency: int | None = None,
    worker: int | None = None,
    supervised: bool = False,
) -> None:
    """Runs the app until it has stopped. Raises the error that ended it, if one did.

    A supervised one takes any number of signals for one wish to stop: the supervisor gets them too,
    and says when there is no more time.
    """
    with _signals(events):
        if not _start(app, events, concurrency, worker):
            return
        told = False
        while (event := events.get()) != "ended":
            if event == "now" or (event == "signal" and told and not supervised):
                logger.warning("stopping at once")
                app.request_stop(now=True)
            elif not told:
                logger.info("stopping: running handlers have %g s", app.grace_s)
                app.request_stop()
            told = True
        app.finish()


def _start(app: App, events: Events, concurrency: int | None, worker: int | None) -> bool:
    """Starts the app, as soon as a broker is there. False if it was told to stop before."""
    pause = _PAUSE_FIRST_S
    while True:
        try:
            app.start(concurrency=concurrency, worker=worker, ended=lambda: events.put("ended"))
            return True
        except FastiError as error:
            if not error.retryable:
                raise
            logger.warning("can't start yet, trying again: %s", error)
        try:
            events.get(timeout=pause)
            app.close()
            return False
        except queue.Empty:
            pause = min(2 * pause, _PAUSE_MAX_S)


@contextmanager
def _signals(events: Events) -> Iterator[None]:
    """SIGTERM and SIGINT become events, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: events.put("signal")) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
