"""Where a directory lives, so that a copy of it which is opened elsewhere can be told.

Two directories with one history have the same shard name: a position of the change feed of one means
something else in the other, and ids that both give are taken for one message. So a directory has a file
``HOME`` that says which file it is itself (its inode), under which path and on which machine it was last
opened. A copy has another inode. What moves or mounts the same files anew keeps it: a rename, a
reboot, a container that starts again, a volume that another machine takes over. And what has
another inode at the same path of the same machine took the place of the original, as when files are
put back from an archive: only one of them is there. So a directory is taken for a copy when its
``HOME`` is another file *and* the path or the machine differs. A snapshot of a whole file system
can't be told from the original.

Nothing here stands in the way of an opening: a ``HOME`` that can't be read or written is as none, and it
says nothing about a disk in memory. The caller has the directory's lock.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fasti.errors import FastiError
from fasti.storage.files import Files, read_whole
from fasti.storage.files.copies import write_with_identity

HOME_NAME = "HOME"
_BYTES_MAX = 1 << 16
_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a directory was last opened. ``cloned``: it began a life of its own there."""

    file: int
    path: str
    machine: str
    cloned: bool = False


def read_home(files: Files) -> Home | None:
    """What the directory says of itself; None if it says nothing."""
    if files.place is None:
        return None
    try:
        home = json.loads(read_whole(files, HOME_NAME, _BYTES_MAX))
        return Home(
            int(home["file"]), str(home["path"]), str(home["machine"]), bool(home["cloned"])
        )
    except (FastiError, ValueError, KeyError, TypeError):
        return None


def is_at_home(files: Files, home: Home) -> bool:
    """Whether the directory is the one that lived there, or took its place."""
    assert files.place is not None
    with suppress(FastiError):
        if files.identity(HOME_NAME) == home.file:
            return True
    return (home.path, home.machine) == (os.path.realpath(files.place), _machine())


def lived_elsewhere(files: Files) -> str | None:
    """Of which directory this one looks like a copy, in words; else None."""
    home = read_home(files)
    if home is None or is_at_home(files, home):
        return None
    return f"{home.path} on machine {home.machine}"


def warning(origin: str) -> str:
    """The warning for an operator who opens a copy."""
    return (
        f"this directory looks like a copy of {origin}, or was moved from there to another disk: if "
        "both are used, start this one once with --clone (clone=True), so that it gets a name of "
        "its own"
    )


def settle(files: Files, cloned: bool = False) -> None:
    """The directory lives here from now on. Only a clone's is synced: to lose it costs a warning."""
    if files.place is None:
        return
    with suppress(FastiError):
        path, machine = os.path.realpath(files.place), _machine()
        home = read_home(files)
        if home is not None:
            stays = is_at_home(files, home)
            cloned = cloned or (home.cloned and stays)
            if home == Home(files.identity(HOME_NAME), path, machine, cloned):
                return
        document = {"path": path, "machine": machine, "cloned": cloned}
        write_with_identity(files, HOME_NAME, document, durable=cloned)


def _machine() -> str:
    for path in _MACHINE_IDS:
        with suppress(OSError):
            identity = Path(path).read_text().strip()
            if identity:
                return identity
    return socket.gethostname()
