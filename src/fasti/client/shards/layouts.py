"""The layouts of topics that a client has asked for: which shard has which partition.

A layout is fixed when its topic is made, so it is asked for once. A topic may be deleted and made again
under the same name with another one: who sends rows by the old one is told `wrong_shard`, forgets it and
asks again. Who asks all shards of a topic is told nothing by those it leaves out, so it takes no layout
that is older than `FRESH_S`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from fasti.client import forking
from fasti.core.layout import Layout

FRESH_S = 10.0
_KEEP_MAX = 4096


class Layouts:
    """Of one client. Any thread. `ask` asks the broker; it raises `not_found`."""

    def __init__(self, ask: Callable[[str, bool], Layout], monotonic: Callable[[], float]) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Layout, float]] = OrderedDict()
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """Taken before the process forks."""
        return [self._lock]

    def _forked(self) -> None:
        """In a child process: what is known is true there as well."""

    def of(self, topic: str, fresh: bool = False, stale: bool = False) -> Layout:
        """A topic's layout; `fresh`: one that was asked for a moment ago at most.

        With `stale` an old one will do, and one that a standby tells.
        """
        known = self._known.get(topic)
        old = fresh and not stale and known is not None and self._monotonic() - known[1] > FRESH_S
        if known is not None and not old:
            return known[0]
        layout = self._ask(topic, stale)
        if stale:
            # For this once: who changes something goes by what is.
            return layout
        with self._lock:
            self._known[topic] = layout, self._monotonic()
            self._known.move_to_end(topic)
            if len(self._known) > _KEEP_MAX:
                self._known.popitem(last=False)
        return layout

    def forget(self, topic: str) -> None:
        """It was changed, deleted, or is not what it was."""
        with self._lock:
            self._known.pop(topic, None)
