"""Producers that a program throws away before their last receipt has come.

What they have taken still goes, and `flush` and `close` of the client wait for it. An outbox is
forgotten when everything in it is answered and its thread has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.client.failures import Failures
    from fasti.client.outbox import Outbox
    from fasti.client.outboxes import Outboxes

# So many may be here before the first look at which of them are over.
_LOOK_AT = 16


class ThrownAway:
    """Their outboxes. Takes no lock: the collector of garbage adds one in the middle of anything."""

    def __init__(self) -> None:
        self._boxes: list[Outbox | Outboxes] = []
        self._look_at = _LOOK_AT
        # The first failure that was not read, of those that are forgotten: `close` raises one only.
        self._failures: Failures | None = None

    def add(self, box: Outbox | Outboxes) -> None:
        """Its producer is gone."""
        self._boxes.append(box)
        if len(self._boxes) >= self._look_at:
            self._forget()
            self._look_at = _LOOK_AT + 2 * len(self._boxes)

    def __iter__(self) -> Iterator[Outbox | Outboxes]:
        """Those that have something under way."""
        return iter([box for box in list(self._boxes) if not box.settled])

    def _forget(self) -> None:
        """Forgets those that are over."""
        # Others are added, or taken out by another thread, in the middle of this.
        for box in list(self._boxes):
            if box.over:
                if self._failures is None and box.failures.pending:
                    self._failures = box.failures
                with suppress(ValueError):
                    self._boxes.remove(box)

    def close(self, timeout_s: float | None) -> list[FastiError]:
        """Waits for what is under way and ends all: what went wrong."""
        boxes = list(self._boxes)
        actions: list[Callable[[], None]] = [partial(box.flush, timeout_s) for box in boxes]
        actions += [box.close for box in boxes]
        actions += [box.failures.throw for box in boxes]
        if self._failures is not None:
            actions.append(self._failures.throw)
        problems: list[FastiError] = []
        for action in actions:
            try:
                action()
            except FastiError as problem:
                problems.append(problem)
        return problems
