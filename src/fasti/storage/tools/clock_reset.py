"""Setting a data directory's time back, once and explicitly, when a wrong clock was believed.

Nothing in a shard goes back in time: events are never older than the one before, and a shard that is
opened goes on from its last event. So after a clock that was a month ahead had been believed, the
shard would be a month ahead of the world. This is the way back: all that the directory holds is
read, the time of its last event becomes the present, and it begins a new life with that (rebase.py).
In the new journal times only rise again; positions of the change feed from before answer `gone`.

Nothing is lost. Messages stay due when they were; what has a time to live ends at that time; rows of
logs that seem to come from the future are kept until that is past. Schedules go on from the present:
what they emitted for later is taken back first, so that no occurrence has two messages.

While it is under way the directory has the marker of a repair, and doesn't open; one that was
interrupted is run again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fasti.config import ShardSettings
from fasti.core.cron.commands import PauseSchedule
from fasti.core.engine import Engine
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files, read_whole, rebase
from fasti.storage.files.rebase import MARKER
from fasti.storage.local_shard import LocalShard
from fasti.storage.tools.at_rest import (
    TOOL_MEMORY_BYTES,
    existing_manifest,
    open_directory,
    rebase_directory,
)

# A small segment is enough for what schedules take back.
_SETTINGS = ShardSettings(segment_bytes=1 << 20, memory_bytes=TOOL_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class ClockReset:
    """What was done, or would be."""

    # The time of the last event, and of the machine's clock.
    last_us: int
    now_us: int
    # Whether the time was set back, or would be: else the directory was not ahead.
    needed: bool
    # Schedules whose messages were taken back, to be emitted again.
    schedules: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def reset_clock(files: Files, now_us: int, *, dry_run: bool = True) -> ClockReset:
    """Makes the present the time of the last event, if that is ahead of it.

    Raises `DataDirLocked` when a broker runs, `NotFound` where none ever did, `Corruption` if the
    directory can't be read: then it is to be repaired first.
    """
    lock = files.lock()
    try:
        last_us = _read(files, now_us, dry_run)
    finally:
        lock.release()
    needed = last_us > now_us
    if dry_run:
        return ClockReset(last_us, now_us, needed)
    return ClockReset(last_us, now_us, needed, _take_back(files, now_us))


def _read(files: Files, now_us: int, dry_run: bool) -> int:
    """The time of the last event as it was; unless it is a dry run, it is the present afterwards."""
    interrupted = _is_interrupted(files)
    if not interrupted:
        rebase.refuse_unfinished(files)
    if interrupted and not dry_run:
        # If all was decided, this is what was left to do.
        rebase.finish(files, existing_manifest(files)[1])
    with open_directory(files) as stored:
        engine, _ = stored.load()
        last_us = engine.state.last_at_us
        if last_us > now_us and not dry_run:
            incarnation = str(stored.manifest.incarnation)
            marker = {"incarnation": incarnation, "cut_frames": None, "clock": True}
            files.replace(MARKER, json.dumps(marker).encode())
            _set_back(engine, now_us)
            rebase_directory(files, stored, engine)
    if not dry_run and files.exists(MARKER):
        files.delete(MARKER)
        files.sync_directory("")
    return last_us


def _is_interrupted(files: Files) -> bool:
    """Whether the marker is one of ours."""
    return files.exists(MARKER) and bool(json.loads(read_whole(files, MARKER)).get("clock"))


def _set_back(engine: Engine, now_us: int) -> None:
    engine.state.last_at_us = now_us
    for topic in engine.kind("cron").all_topics.values():
        book = topic.body
        book.last_us[: book.size] = np.minimum(book.last_us[: book.size], now_us)


def _take_back(files: Files, now_us: int) -> int:
    """Has schedules take back what they emitted for later: how many they are."""
    shard = LocalShard(FileStorage(files), _SETTINGS)
    taken = 0
    try:
        for topic in list(shard.engine.kind("cron").all_topics.values()):
            entries = topic.body.all_ahead()
            later = np.unique(entries.number[entries.occurrence_us > now_us]).tolist()
            active = topic.body.exists & ~topic.body.paused
            names = [topic.body.names[number] for number in later if active[number]]
            for name in names:
                # As a caller who pauses a schedule and lets it go on: it begins again from now.
                both = [PauseSchedule(topic.name, name, paused) for paused in (True, False)]
                shard.step(both, now_us, 0)
            taken += len(names)
    finally:
        shard.close()
    return taken
