"""A small file system of its own, that can be filled to the last byte and emptied again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_PIECE = b"\0" * 4096


class SmallDisk:
    """A file system in memory; the broker's data and our ballast lie on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Takes what is left, and what the broker gives back meanwhile."""
        descriptor = os.open(self._ballast, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            while self.free_bytes:
                with suppress(OSError):
                    os.write(descriptor, _PIECE)
        finally:
            os.close(descriptor)

    @property
    def free_bytes(self) -> int:
        about = os.statvfs(self.path)
        return about.f_bavail * about.f_frsize

    def make_room(self) -> None:
        """Somebody deleted something."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mounts it, if this process may; the test is skipped otherwise."""
    path.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"") or b""
        pytest.skip(f"no file system can be mounted here: {told.decode().strip() or error}")
    try:
        yield SmallDisk(path)
    finally:
        with suppress(OSError):
            subprocess.run(["umount", str(path)], check=False, capture_output=True)
