"""What was found damaged since a directory was opened, by file. Any thread.

Every reader notes it here: a delivery, a checkpoint, a scrub. Checkpoints look here before they choose
what to write again, metrics and alarms count it, and a file that is gone, or good again, is taken out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

_log = logging.getLogger("fasti.storage.damage")

# More files than this are not listed: the disk is gone then, and one line says as much.
_FILES_MAX = 10_000
_LOGGED_MAX = 100


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file, where its damage begins, and what is wrong. `rows`: how many lost something, if known."""

    file: str
    offset: int
    message: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LostIds:
    """Messages of a topic that a damaged block held, of a log the ids of rows; at most 1,000 are named."""

    topic: str
    count: int
    ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScrubFinding:
    """A damaged file, and whose payloads are lost with it, as far as that is known."""

    file: str
    offset: int
    message: str
    lost: list[LostIds] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def damaged(self) -> DamagedFile:
        rows = sum(ids.count for ids in self.lost) if self.lost else None
        return DamagedFile(self.file, self.offset, self.message, rows)


class Damages:
    """The damaged files of one directory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, DamagedFile] = {}
        self._logged = 0

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file: str) -> bool:
        return file in self._files

    def files(self) -> list[DamagedFile]:
        with self._lock:
            return [damage for _, damage in sorted(self._files.items())]

    def note(self, damage: DamagedFile) -> bool:
        """A file is damaged; False if that was known. Logged once for each file."""
        with self._lock:
            if damage.file in self._files or len(self._files) >= _FILES_MAX:
                return False
            self._files[damage.file] = damage
            self._logged += 1
            logged = self._logged
        if logged <= _LOGGED_MAX:
            rows = "" if damage.rows is None else f", {damage.rows} rows of it can't be read"
            _log.error(
                "%s is damaged at offset %d: %s%s", damage.file, damage.offset, damage.message, rows
            )
        if logged == _LOGGED_MAX:
            _log.error("more damaged files are not logged: `fasti storage scrub` lists them")
        return True

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Files that are not there any more, or good again."""
        with self._lock:
            for file in [file for file in self._files if is_gone(file)]:
                del self._files[file]
