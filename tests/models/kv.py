"""A key-value topic as plainly as it can be said: a dict, and rules that a reader can check.

Rows of a batch happen one after another. The version of a new entry is the engine's to choose: the
model is told it, and insists that the key never had it before, nor a higher one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from fasti.model import Outcome

ANY = -1


@dataclass(slots=True)
class Entry:
    """What a key holds."""

    value: bytes
    version: int
    # None: it stays.
    expires_us: int | None = None

    def is_live(self, now_us: int) -> bool:
        """Whether a reader sees it."""
        return self.expires_us is None or self.expires_us > now_us


@dataclass(slots=True)
class Put:
    """A row of a put: `version` is what it expects (0: no entry)."""

    key: str
    value: bytes
    version: int = ANY
    expires_us: int | None = None


@dataclass(slots=True)
class Answer:
    """What became of a row, and the version that the key has after it (0: no entry)."""

    status: Outcome
    version: int


@dataclass(slots=True)
class KvModel:
    """The entries of a topic."""

    entries: dict[str, Entry] = field(default_factory=dict)
    # The highest version that each key ever had.
    highest: dict[str, int] = field(default_factory=dict)

    def copied(self) -> KvModel:
        """As it is now: to go back to, should a transaction be void."""
        return copy.deepcopy(self)

    def get(self, key: str, now_us: int) -> Entry | None:
        """What a reader sees."""
        entry = self.entries.get(key)
        return entry if entry is not None and entry.is_live(now_us) else None

    def count(self, now_us: int) -> int:
        """How many entries a reader sees."""
        return sum(entry.is_live(now_us) for entry in self.entries.values())

    def put(self, rows: Sequence[Put], now_us: int, told: Sequence[int]) -> list[Answer]:
        """One row after another; `told` are the versions that the engine answered."""
        return [self._put(row, now_us, version) for row, version in zip(rows, told, strict=True)]

    def _put(self, row: Put, now_us: int, told: int) -> Answer:
        present = self.get(row.key, now_us)
        version = 0 if present is None else present.version
        if row.version not in (ANY, version):
            return Answer(Outcome.CONFLICT, version)
        if present is None:
            assert told > self.highest.get(row.key, 0), f"version {told} of {row.key!r} comes again"
            version = told
        else:
            version += 1
        self.entries[row.key] = Entry(row.value, version, row.expires_us)
        self.highest[row.key] = version
        return Answer(Outcome.OK, version)

    def delete(self, rows: Sequence[tuple[str, int]], now_us: int) -> list[Answer]:
        """Of pairs of key and expected version, one after another."""
        answers = []
        for key, wanted in rows:
            present = self.get(key, now_us)
            if present is None:
                answers.append(Answer(Outcome.NOT_FOUND, 0))
            elif wanted not in (ANY, present.version):
                answers.append(Answer(Outcome.CONFLICT, present.version))
            else:
                del self.entries[key]
                answers.append(Answer(Outcome.OK, present.version))
        return answers

    def expire(self, now_us: int) -> None:
        """What has expired is gone for good."""
        for key in [key for key, entry in self.entries.items() if not entry.is_live(now_us)]:
            del self.entries[key]
