"""The schedules of a cron topic: columns by number, and what was emitted ahead of its time.

A schedule has a number, which is used again when it is gone; its version goes on, so that (number,
version) never means two things. `last_us` is its last occurrence that was decided, emitted or passed
over: a later one may still come, an earlier one never.

`ahead` remembers what lies in target topics for occurrences that have not come yet: who changes or
stops a schedule takes it back. It is a hint that is checked against the messages themselves, and
entries whose time has come mean nothing any more, so it doesn't matter when they are forgotten.

The sequencer's thread only.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import FOREVER
from fasti.core.cron.schedule import OVERLAPS
from fasti.core.kind import Columns

Int64s = NDArray[np.int64]

_COLUMNS: dict[str, type] = {
    "version": np.int64,
    "last_us": np.int64,
    # The last occurrence that was emitted and whose time has come, its message, and the topic it
    # went to; or a message that was asked for since.
    "occurred_us": np.int64,
    "last_id": np.int64,
    "last_target": np.int64,
    "fired": np.int64,
    "skipped": np.int64,
    "grace_us": np.int64,
    "priority": np.uint16,
    "overlap": np.uint8,
    "paused": np.bool_,
    "exists": np.bool_,
}
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())
# Beside their letters: two texts, and where they are listed.
_TEXTS_BYTES = 256
# What a schedule takes at most beside its texts' letters, with room for as many more.
SCHEDULE_BYTES = 2 * _ROW_BYTES + _TEXTS_BYTES
_AHEAD = ("target", "number", "occurrence_us", "id")
_SIZE_MIN = 64


@dataclass(slots=True)
class Ahead:
    """Messages of occurrences that have not come yet, of one `Fired`."""

    target: Int64s
    number: Int64s
    occurrence_us: Int64s
    id: Int64s

    def only(self, good: NDArray[Any]) -> Ahead:
        """Some of them."""
        return Ahead(*(getattr(self, name)[good] for name in _AHEAD))


class CronBook:
    """One per cron topic."""

    version: Int64s
    last_us: Int64s
    occurred_us: Int64s
    last_id: Int64s
    last_target: Int64s
    fired: Int64s
    skipped: Int64s
    grace_us: Int64s
    priority: NDArray[np.uint16]
    overlap: NDArray[np.uint8]
    paused: NDArray[np.bool_]
    exists: NDArray[np.bool_]

    def __init__(self) -> None:
        self.size = 0
        self.names: list[str] = []
        self.definitions: list[str | None] = []
        self.by_name: dict[str, int] = {}
        # Numbers that may be given again, in the order in which they were given up.
        self.free: dict[int, None] = {}
        # Of schedules whose messages expire: how long after they are due. From their definitions.
        self.expires: dict[int, int] = {}
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(_SIZE_MIN, dtype=kind))
        self.ahead: deque[Ahead] = deque()
        self.first_ahead_us = FOREVER
        # What names and definitions take.
        self.texts_bytes = 0
        # Counts what changed, and when each schedule last did: no durable state.
        self.changes = 0
        self.changed_at = np.zeros(_SIZE_MIN, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.by_name)

    # Making events so

    def put(self, number: int, name: str, version: int, last_us: int, definition: str) -> None:
        """A schedule is new, or another one now."""
        self._grow(number + 1)
        if not self.exists[number]:
            for column in ("occurred_us", "last_id", "last_target", "fired", "skipped", "paused"):
                getattr(self, column)[number] = 0
            self.names[number], self.by_name[name] = name, number
            self.exists[number] = True
            self.free.pop(number, None)
        fields = json.loads(definition)
        self.texts_bytes += self._texts_bytes(name, definition, self.definitions[number])
        self.version[number], self.last_us[number] = version, last_us
        self.definitions[number] = definition
        self.overlap[number] = OVERLAPS.index(fields.get("overlap", OVERLAPS[0]))
        self.grace_us[number] = fields.get("misfire_grace_us", 10_000_000)
        self.priority[number] = fields.get("priority", 0)
        self._put_expiry(number, fields)
        self._note(number)

    def _put_expiry(self, number: int, fields: dict[str, Any]) -> None:
        if fields.get("expires_us"):
            self.expires[number] = fields["expires_us"]
        else:
            self.expires.pop(number, None)

    def expiry_of(self, numbers: Int64s) -> Int64s | None:
        """How long after they are due messages of schedules must be begun; None: no matter."""
        if not self.expires:
            return None
        lengths = [self.expires.get(number, 0) for number in numbers.tolist()]
        return np.array(lengths, dtype=np.int64) if any(lengths) else None

    def delete(self, number: int) -> None:
        """A schedule is gone; its number may serve another."""
        name = self.names[number]
        self.texts_bytes -= self._texts_bytes(name, self.definitions[number], None)
        del self.by_name[name]
        self.exists[number] = False
        self.definitions[number] = None
        self.expires.pop(number, None)
        self.free[number] = None
        self._keep_ahead(lambda entries: entries.number != number)
        self._note(number)

    def pause(self, number: int, paused: bool, last_us: int) -> None:
        """A schedule rests, or goes on."""
        self.paused[number], self.last_us[number] = paused, last_us
        self._note(number)

    def fire(self, entries: Ahead, now_us: int) -> None:
        """Occurrences were emitted, or passed over (id 0). None stands here twice."""
        self.forget(now_us)
        numbers, emitted = entries.number, entries.id > 0
        self.last_us[numbers] = np.maximum(self.last_us[numbers], entries.occurrence_us)
        self.fired[numbers] += emitted
        self.skipped[numbers] += ~emitted
        later = emitted & (entries.occurrence_us > now_us)
        self._come(entries.only(emitted & ~later))
        if later.any():
            entries = entries.only(later)
            self.ahead.append(entries)
            self.first_ahead_us = min(self.first_ahead_us, int(entries.occurrence_us.min()))

    def unfire(self, numbers: Int64s, last_us: Int64s) -> None:
        """What was emitted ahead was taken back, a row for each message."""
        np.subtract.at(self.fired, numbers, 1)
        self.last_us[numbers] = last_us
        kept = np.full(self.size, FOREVER, dtype=np.int64)
        kept[numbers] = last_us
        self._keep_ahead(lambda entries: entries.occurrence_us <= kept[entries.number])
        for number in np.unique(numbers).tolist():
            self._note(number)

    @property
    def size_bytes(self) -> int:
        """What it takes, about, but what was emitted ahead."""
        return len(self.version) * _ROW_BYTES + self.texts_bytes

    def _texts_bytes(self, name: str, definition: str | None, before: str | None) -> int:
        """How much more a definition takes than the one before, if there was one."""
        size = len(definition or "")
        return size + len(name) + _TEXTS_BYTES if before is None else size - len(before)

    def _note(self, number: int) -> None:
        self.changes += 1
        self.changed_at[number] = self.changes

    def _grow(self, size: int) -> None:
        while len(self.names) < size:
            self.names.append("")
            self.definitions.append(None)
        self.size = max(self.size, size)
        room = len(self.version)
        if size <= room:
            return
        for name in (*_COLUMNS, "changed_at"):
            before = getattr(self, name)
            values = np.zeros(max(size, 2 * room), dtype=before.dtype)
            values[:room] = before
            setattr(self, name, values)

    # Ahead of time

    def forget(self, now_us: int) -> None:
        """The time of some has come: they are messages like any other, and their schedules' last."""
        if now_us < self.first_ahead_us:
            return
        for entries in self.ahead:
            self._come(entries.only(entries.occurrence_us <= now_us))
        self._keep_ahead(lambda entries: entries.occurrence_us > now_us)

    def _come(self, entries: Ahead) -> None:
        self.last_id[entries.number] = entries.id
        self.last_target[entries.number] = entries.target
        self.occurred_us[entries.number] = np.maximum(
            self.occurred_us[entries.number], entries.occurrence_us
        )

    def _keep_ahead(self, wanted: Callable[[Ahead], NDArray[np.bool_]]) -> None:
        kept: deque[Ahead] = deque()
        first = FOREVER
        for entries in self.ahead:
            good = wanted(entries)
            if good.any():
                entries = entries if good.all() else entries.only(good)
                first = min(first, int(entries.occurrence_us.min()))
                kept.append(entries)
        self.ahead, self.first_ahead_us = kept, first

    def all_ahead(self) -> Ahead:
        """All of them, as one."""
        return _joined(list(self.ahead))

    def ahead_of(self, numbers: Int64s, after_us: int) -> Ahead:
        """Those of some schedules, for occurrences after a moment."""
        mine = np.zeros(self.size, dtype=np.bool_)
        mine[numbers] = True
        found = [
            entries.only(wanted)
            for entries in self.ahead
            if (wanted := mine[entries.number] & (entries.occurrence_us > after_us)).any()
        ]
        return _joined(found)

    # Checkpoints

    def capture(self, prefix: str, columns: Columns) -> dict[str, Any]:
        """Copies columns; texts are joined later, by whoever writes them."""
        for name in _COLUMNS:
            values = getattr(self, name)[: self.size]
            columns[prefix + name] = values.astype(np.uint8 if values.dtype == bool else None)
        entries = self.all_ahead()
        for name in _AHEAD:
            columns[f"{prefix}ahead.{name}"] = getattr(entries, name)
        for word, texts in (("names", list(self.names)), ("definitions", list(self.definitions))):
            joined = _Texts(texts)
            columns[f"{prefix}{word}.bytes"] = joined.bytes
            columns[f"{prefix}{word}.ends"] = joined.ends
        return {"size": self.size}

    def restore(self, prefix: str, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`."""
        size = described["size"]
        self._grow(size)
        for name in _COLUMNS:
            getattr(self, name)[:size] = columns[prefix + name]
        self.names = _split(columns, prefix + "names")
        texts = _split(columns, prefix + "definitions")
        exists = self.exists[:size].tolist()
        self.definitions = [
            text if here else None for text, here in zip(texts, exists, strict=True)
        ]
        for number, text in enumerate(self.definitions):
            if text is not None and '"expires_us"' in text:
                self._put_expiry(number, json.loads(text))
        self.by_name = {
            name: number
            for number, (name, here) in enumerate(zip(self.names, exists, strict=True))
            if here
        }
        self.free = {number: None for number, here in enumerate(exists) if not here}
        self.texts_bytes = sum(
            self._texts_bytes(self.names[number], self.definitions[number], None)
            for number in self.by_name.values()
        )
        entries = Ahead(*(columns[f"{prefix}ahead.{name}"] for name in _AHEAD))
        if len(entries.occurrence_us):
            self.ahead.append(entries)
            self.first_ahead_us = int(entries.occurrence_us.min())
        self.changes = size
        self.changed_at[:size] = np.arange(1, size + 1)


def _joined(pieces: list[Ahead]) -> Ahead:
    none = np.zeros(0, dtype=np.int64)
    parts = [[getattr(entries, name) for entries in pieces] for name in _AHEAD]
    return Ahead(*(np.concatenate([*part, none]) for part in parts))


class _Texts:
    """Texts as bytes and ends, made when the checkpoint asks for them."""

    def __init__(self, texts: list[Any]) -> None:
        self._texts = texts
        self._encoded: list[bytes] | None = None

    def _all(self) -> list[bytes]:
        if self._encoded is None:
            self._encoded = [(text or "").encode() for text in self._texts]
        return self._encoded

    def bytes(self) -> NDArray[np.uint8]:
        """All of them, one after another."""
        return np.frombuffer(b"".join(self._all()), dtype=np.uint8)

    def ends(self) -> Int64s:
        """Where each one ends."""
        return np.cumsum([len(text) for text in self._all()], dtype=np.int64)


def _split(columns: Columns, name: str) -> list[str]:
    data = bytes(columns[name + ".bytes"])
    begin, texts = 0, []
    for end in columns[name + ".ends"].tolist():
        texts.append(data[begin:end].decode())
        begin = end
    return texts
