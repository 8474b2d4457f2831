"""Telling a directory from a copy of it that was made while a broker had it open.

While a directory is open it has a file ``OPEN``, which says who opened it and which file it is itself
(its inode). Whoever closes the directory removes it. So an opening that finds one knows that the
last process didn't end well, or has not ended: if the file is still the one that it says, the
directory is the same, after a crash; moving or renaming it changes nothing. If it isn't, somebody has
copied the files of a directory that was open.

Such a copy has files of different moments. Blocks never change, and a journal is good up to any of
its frames: what the checks of an opening let pass is the directory as of some moment while it was
copied. So a copy that is whole is opened, with a warning, and one that isn't is refused with a text
that says why. A copy of a directory that was closed has no ``OPEN`` and nothing is said.

Nothing here stands in the way of an opening by itself: a file ``OPEN`` that can't be read or written
is as none, and it says nothing about a disk in memory. The caller has the directory's lock.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any

from fasti.errors import Corruption, FastiError
from fasti.storage.files import Files

OPEN_NAME = "OPEN"
_ADVICE = (
    "take backups of a running broker with `fasti backup`, or copy its directory when it is stopped"
)


def copied_from(files: Files) -> str | None:
    """Of which directory this one is a copy that was made while it was open, in words; else None."""
    found = None if files.place is None else _read(files)
    if found is None or "file" not in found or found["file"] == files.identity(OPEN_NAME):
        return None
    return f"{found.get('path')} on {found.get('host')}, which process {found.get('pid')} had open"


def warning(origin: str) -> str:
    """What to tell who opens a copy that is whole."""
    return (
        f"this directory looks like a copy of {origin} when it was copied: what was acknowledged "
        f"during and after the copy may be missing; {_ADVICE}"
    )


def explain(error: Corruption, origin: str) -> Corruption:
    """Damage of a copy, told as what it is."""
    return Corruption(
        f"{error.message}; this directory looks like a copy of {origin} when it was copied, so "
        f"its files are of different moments: {_ADVICE}",
        file=error.file,
        offset=error.offset,
        details=error.details,
    )


def mark_open(files: Files) -> None:
    """The directory is open from now on."""
    if files.place is None:
        return
    with suppress(FastiError):
        if files.exists(OPEN_NAME):
            files.delete(OPEN_NAME)
        file = files.create(OPEN_NAME, 0)
        try:
            identity = files.identity(OPEN_NAME)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "path": files.place}
            file.write_at(0, [json.dumps({"file": identity, **owner}).encode()])
            file.sync()
        finally:
            file.close()
        files.sync_directory("")


def mark_closed(files: Files) -> None:
    """Nobody writes here any more."""
    if files.place is None:
        return
    with suppress(FastiError):
        if files.exists(OPEN_NAME):
            files.delete(OPEN_NAME)
            files.sync_directory("")


def _read(files: Files) -> dict[str, Any] | None:
    try:
        if not files.exists(OPEN_NAME):
            return None
        file = files.open(OPEN_NAME, writable=False)
        try:
            found = json.loads(file.read_at(0, 1 << 16))
        finally:
            file.close()
    except (FastiError, ValueError):
        return None
    return found if isinstance(found, dict) else None
