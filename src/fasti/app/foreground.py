"""Running an app in this process until it is told to stop, by a signal or by its supervisor.

The main thread only waits for events: signals, words of the supervisor, the app's own end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fasti.app.events import Events
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.app.app import App

logger = logging.getLogger("fasti.app")

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

    Events are `signal`, `stop`, `now` and `ended`. A supervised one takes any number of signals for one wish to stop: the supervisor gets them too,
    and says when there is no more time.
    """
    with events.signals():
        if not _start(app, events, concurrency, worker):
            return
        is_stopping = False
        while (event := events.get()) != "ended":
            if event == "now" or (event == "signal" and is_stopping and not supervised):
                logger.warning("stopping at once")
                app.request_stop(now=True)
            elif not is_stopping:
                logger.info("stopping: running handlers have %g s", app.grace_s)
                app.request_stop()
            is_stopping = True
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
        if events.get(timeout=pause) is not None:
            app.close()
            return False
        pause = min(2 * pause, _PAUSE_MAX_S)
