"""What can be seen of a broker that is being drained, until it leads nothing and stands by for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fasti.errors import FastiError, TimedOut, Unavailable

_LOOK_S = 0.1


class Move(NamedTuple):
    """A shard that another broker leads now."""

    shard: int
    leader: str
    epoch: int


class Emptying:
    """One drain as it is watched."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.done: list[Move] = []
        # Shards that it has led since it is watched, and that nobody else was seen to lead yet.
        self._open: set[int] = set()
        self._drained = False

    def watch(self, ask: Callable[[], dict[str, Any]], within_s: float) -> Iterator[Move]:
        """Shard by shard, as another leads it; ends when it is empty.

        Raises `timed_out`, `unavailable` if the broker is gone, an error if nobody is left that could take
        a shard. In all of these cases it stays drained.
        """
        until = time.monotonic() + within_s
        while True:
            late = time.monotonic() >= until
            try:
                view = ask()
            except (Unavailable, TimedOut):
                # For a moment none may answer, or the one that was asked is just stopping.
                if late:
                    raise
            else:
                yield from self._take(view)
                if self._is_empty(view):
                    return
                self._check(view)
                if late:
                    left = ", ".join(map(str, sorted(self._open))) or "none"
                    raise TimedOut(
                        f"{self.broker} was not empty within {within_s:g} s; shards that are left: "
                        f"{left}. It goes on: look with `fasti cluster status`"
                    )
            time.sleep(_LOOK_S)

    def _take(self, view: dict[str, Any]) -> Iterator[Move]:
        for shard in view["shards"]:
            number, leader = shard["shard"], shard["leader"]
            if leader == self.broker:
                self._open.add(number)
            elif leader is not None and number in self._open:
                self._open.discard(number)
                self.done.append(Move(number, leader, shard["epoch"]))
                yield self.done[-1]

    def _is_empty(self, view: dict[str, Any]) -> bool:
        member = self._member(view)
        self._drained |= member is not None and member["weight"] == 0
        follows = any(self.broker in shard["standbys"] for shard in view["shards"])
        return member is not None and member["weight"] == 0 and not self._open and not follows

    def _check(self, view: dict[str, Any]) -> None:
        member = self._member(view)
        if member is None or member["state"] == "gone":
            raise Unavailable(
                f"{self.broker} is gone before it was empty: others take over what it led"
            )
        if self._drained and member["weight"] > 0:
            raise FastiError(f"{self.broker} was started again, or undrained, before it was empty")
        others = (each for each in view["members"] if each["name"] != self.broker)
        if not any(each["state"] == "alive" and each["weight"] > 0 for each in others):
            raise FastiError(
                f"no other broker is left that can lead: {self.broker} goes on leading what it has. "
                f"Start another one, or `fasti cluster undrain {self.broker}`"
            )

    def _member(self, view: dict[str, Any]) -> dict[str, Any] | None:
        return next((each for each in view["members"] if each["name"] == self.broker), None)
