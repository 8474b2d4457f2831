"""Faults of the program that commands bring out: counted, logged, and not repeated for ever.

The engine refuses a command that raises if nothing of it was applied, and the shard goes on. If
something was, the engine is dropped, which costs every consumer its session. Whoever sends such a
command again and again would keep everybody from working, so the shard remembers what it was: from
the second time on, commands of that name on that topic are refused before they reach the engine, for
a second, and twice as long with every further time, up to a minute.

What was at fault is known by the command's name and topic, not by its sender: another one would be
met by the same fault. Any thread may call anything here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fasti.core.command import Command
from fasti.core.commands import Detach
from fasti.core.work import Fault
from fasti.errors import InternalError
from fasti.model import back_off
from fasti.runtime import Ticking

_log = logging.getLogger("fasti.broker.faults")

_SECOND_US = 1_000_000
_CLOSED_MAX_US = 60 * _SECOND_US
# What did no harm for so long is forgotten.
_FORGOTTEN_US = 600 * _SECOND_US
# So many are remembered.
_SUSPECTS_MAX = 1_024
# The same fault is logged so often.
_LOGGED_EVERY_US = 60 * _SECOND_US

Key = tuple[Any, ...]


@dataclass(slots=True)
class _Suspect:
    """What made the shard drop its engine: how often, when last, and until when it is refused."""

    times: int = 0
    last_us: int = 0
    until_us: int = 0


class Faults:
    """Those of one shard."""

    def __init__(self, clock: Ticking) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By the command's name, and whether the engine was kept or dropped.
        self._counts: Counter[tuple[str, str]] = Counter()
        self.suspects: dict[Key, _Suspect] = {}
        # By command and what was raised: when it was logged, and how often it was not since.
        self._logged: dict[tuple[str, str, str], tuple[int, int]] = {}

    def counts(self) -> dict[tuple[str, str], int]:
        """How often a command raised, by its name and by what became of the engine."""
        with self._lock:
            return dict(self._counts)

    def note_refused(self, fault: Fault) -> None:
        """A command was refused, and the engine goes on."""
        name = _name(fault.command)
        with self._lock:
            self._counts[name, "kept"] += 1
        told = f"refused {_described(fault.command)}, nothing of it happened"
        self._tell((name, "kept"), told, fault.error)

    def note_call(self, name: str, error: BaseException) -> None:
        """A call or a session ended by a fault outside the engine."""
        with self._lock:
            self._counts[name, "kept"] += 1
        self._tell((name, "kept"), f"ended a {name!r}", error)

    def note_dropped(self, command: Any, error: BaseException, serving: str = "") -> None:
        """The engine is dropped because of a command, or by serving a topic, or nobody knows why."""
        name = "serve" if serving else _name(command)
        with self._lock:
            self._counts[name, "dropped"] += 1
            if serving:
                self._suspect(("Lease", serving))
            elif command is not None:
                self._suspect(_key(command))
        cause = f"handing out {serving!r}" if serving else _described(command)
        self._tell((name, "dropped"), f"dropped the engine, which failed on {cause}", error)

    def check(self, command: Any) -> None:
        """Raises `internal` for what made the shard drop its engine again and again.

        Called only while there are `suspects`.
        """
        if isinstance(command, Detach):
            return
        with self._lock:
            suspect = self.suspects.get(_key(command))
            if suspect is None or suspect.until_us <= self._clock.tick():
                return
            times = suspect.times
        raise InternalError(
            f"{_described(command)} made the broker recover {times} times: it is refused for now",
            details={"command": _name(command), "topic": str(getattr(command, "topic", ""))},
        )

    def _suspect(self, key: Key) -> None:
        now_us = self._clock.tick()
        for other in [k for k, s in self.suspects.items() if s.last_us + _FORGOTTEN_US < now_us]:
            del self.suspects[other]
        # The last one comes last, and the oldest goes first.
        suspect = self.suspects.pop(key, None) or _Suspect()
        while len(self.suspects) >= _SUSPECTS_MAX:
            del self.suspects[next(iter(self.suspects))]
        suspect.times += 1
        suspect.last_us = now_us
        if suspect.times > 1:
            closed_us = back_off(_SECOND_US, suspect.times - 2, _CLOSED_MAX_US)
            suspect.until_us = now_us + int(closed_us)
        self.suspects[key] = suspect

    def _tell(self, fault: tuple[str, str], what: str, error: BaseException) -> None:
        """Logs it with its traceback; what was logged a moment ago is only counted.

        Topics make no difference: there may be as many as a client likes.
        """
        kind, now_us = (*fault, type(error).__name__), self._clock.tick()
        with self._lock:
            logged_us, left_out = self._logged.get(kind, (None, 0))
            if logged_us is not None and now_us - logged_us < _LOGGED_EVERY_US:
                self._logged[kind] = (logged_us, left_out + 1)
                return
            self._logged[kind] = (now_us, 0)
        again = f" (and {left_out} times since this was last logged)" if left_out else ""
        _log.error("a fault of the broker: %s%s", what, again, exc_info=error)


def _name(command: Any) -> str:
    return "step" if command is None else type(command).__name__


def _described(command: Any) -> str:
    if command is None:
        return "a step"
    topic = str(getattr(command, "topic", ""))
    return f"{_name(command)} on {topic!r}" if topic else f"a {_name(command)}"


def _key(command: Command) -> Key:
    """What commands have in common that meet the same fault."""
    if command.parts:
        return (_name(command), frozenset(_key(part) for part in command.parts))
    return (_name(command), getattr(command, "topic", None) or getattr(command, "name", ""))
