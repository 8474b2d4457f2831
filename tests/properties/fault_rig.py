"""Faults of the program at any line of the engine: an exception where the code has none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import fasti.core

T = TypeVar("T")

_CORE = str(Path(fasti.core.__file__).parent)
# Work and undo notes say what was applied: without them nothing could be told. And `step` itself is
# a frame around what may fail.
_BOOKKEEPING = (f"{_CORE}/work.py", f"{_CORE}/undo.py")
_FRAME = "step"


class InjectedFault(Exception):
    """Nobody raises this on purpose."""


class Injection:
    """Raises once, at the nth line of the core that is run under it; `place` says where that was."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.place = ""

    def run(self, function: Callable[[], T]) -> T:
        """Calls the function; what it raises is its own matter."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            return function()
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if _may_fail(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self.nth > 0:
            self.nth -= 1
            if not self.nth:
                code = frame.f_code
                self.place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                raise InjectedFault(self.place)
        return self._line


def _may_fail(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith(_CORE) and name not in _BOOKKEEPING and code.co_name != _FRAME
