"""Keeps pandas out of the processes of brokers and commands.

The first time that Arrow is given a Python list it looks whether pandas is there, by importing it.
Where it is installed, for whatever reason, every broker and every command would start half a second
later and be larger by some 20 MB, for nothing: none of them has a Series in its hands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _Hidden(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden", name=name)
        return None


def hide_pandas_from_arrow() -> None:
    """Has Arrow look now, and find none. For a process that is all ours."""
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
