"""Telling a directory from a copy of it that was made while a broker had it open.

While a directory is open it has a file ``OPEN``, which says who opened it and which file it is itself
(its inode). The process that closes the directory removes it. So an opening that finds one knows that the
last process didn't end well, or has not ended: if the file is still the one that it says, the
directory is the same, after a crash; moving or renaming it changes nothing. If it isn't, the files
of a directory that was open have been copied.

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
from fasti.storage.files import Files, read_whole

OPEN_NAME = "OPEN"
_ADVICE = (
    "take backups of a running broker with `fasti backup`, or copy its directory when it is stopped"
)


def copied_from(files: Files) -> str | None:
    """Of which directory this one is a copy that was made while it was open, in words; else None."""
    owner = None if files.place is None else _read(files)
    if owner is None or "file" not in owner or owner["file"] == files.identity(OPEN_NAME):
        return None
    return f"{owner.get('path')} on {owner.get('host')}, which process {owner.get('pid')} had open"


def warning(origin: str) -> str:
    """The warning for an operator who opens a copy that is whole."""
    return (
        f"this directory looks like a copy of {origin} when it was copied: what was acknowledged "
        f"during and after the copy may be missing; {_ADVICE}"
    )


def explain(error: Corruption, origin: str) -> Corruption:
    """The error for damage of a copy, which says that it is one."""
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
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "path": files.place}
        write_with_identity(files, OPEN_NAME, owner)


def mark_closed(files: Files) -> None:
    """The directory is not open any more."""
    if files.place is None:
        return
    with suppress(FastiError):
        if files.exists(OPEN_NAME):
            files.delete(OPEN_NAME)
            files.sync_directory("")


def write_with_identity(
    files: Files, name: str, document: dict[str, Any], durable: bool = True
) -> None:
    """Writes a file that says, as `file`, which file it is itself. It replaces what had the name."""
    temporary = f"{name}.tmp"
    if files.exists(temporary):
        files.delete(temporary)
    file = files.create(temporary, 0)
    try:
        # It keeps its inode when it gets its name.
        identity = files.identity(temporary)
        file.write_at(0, [json.dumps({"file": identity, **document}).encode()])
        if durable:
            file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    if durable:
        files.sync_directory("")


def _read(files: Files) -> dict[str, Any] | None:
    try:
        if not files.exists(OPEN_NAME):
            return None
        owner = json.loads(read_whole(files, OPEN_NAME, 1 << 16))
    except (FastiError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None
