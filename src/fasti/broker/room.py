"""Whether the disk has room for what is produced, and since when it has not.

The sequencer tells when it had to refuse something for want of room. From then on the housekeeper
looks once a second whether there is room again, until there is. The log has a line when it begins and
one when it ends, and none in between, however many are refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fasti.broker.logs import fields

_log = logging.getLogger("fasti.broker.room")


class Room:
    """One per shard. Any thread."""

    def __init__(
        self,
        has_room: Callable[[int], bool],
        free_bytes: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._has_room, self._free_bytes, self._monotonic = has_room, free_bytes, monotonic
        self._lock = threading.Lock()
        self._since: float | None = None
        # The least that was refused: when there is room for that, work gets done.
        self._needed_bytes = 0
        self._refused = 0

    @property
    def full(self) -> bool:
        """Whether producing is refused because of the disk."""
        return self._since is not None

    def refuse(self, needed_bytes: int) -> bool:
        """Something was refused. True if it is the first: the housekeeper must `look` from now on."""
        with self._lock:
            begins = self._since is None
            if begins:
                self._since, self._refused = self._monotonic(), 0
                self._needed_bytes = needed_bytes
            self._needed_bytes = min(self._needed_bytes, needed_bytes)
            self._refused += 1
        if begins:
            _log.error(
                "the disk is full: producing is refused until there is room",
                extra=fields(
                    code="storage_full",
                    needed_bytes=needed_bytes,
                    free_bytes=self._free_bytes(),
                ),
            )
        return begins

    def look(self) -> None:
        """Ends the refusals if there is room again."""
        if self._since is None or not self._has_room(self._needed_bytes):
            return
        with self._lock:
            if self._since is None:
                return
            told = fields(refused=self._refused, seconds=round(self._monotonic() - self._since, 1))
            _log.warning("the disk has room again: producing goes on", extra=told)
            self._since = None
