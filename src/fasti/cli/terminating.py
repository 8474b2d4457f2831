"""How commands that run on and on end: SIGTERM as Ctrl-C, so that nothing is left half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fasti.cli.exits import TERMINATED


@contextmanager
def terminated_softly() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what is unfinished is given back."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
