"""A simulated disk that loses everything that a real one may lose.

`SimulatedFiles` is a `fasti.storage.files.Files` in memory.  It keeps two images of every file:
what the process sees, and what is on the disk.  A write changes only the first; a sync copies
the sectors written since the last one to the second.  Names work the same way: creations,
renames and deletions are seen at once and are durable after `sync_directory`.

`crash(rng)` gives the disk as the next process finds it.  Of each file's unsynced sectors, none,
all, the first few, or any may have arrived, and one may be torn in the middle; of the unsynced
changes of names none, all, the first few or any that make sense without the others.  The same
seed gives the same disk.

To try every crash point of a workload: run it once and read ``operations``; then for each k
below that run it again on a disk with ``stop_before=k``, catch `Crashed`, and look at
``crash(rng)``.  Every change of the disk is one operation; reads are not.

Faults: `fail` makes the n-th operation of a kind from now on fail with an errno; a write that
fails has written its first half, and a sync that fails has written nothing *and forgets what it
should have written*, as operating systems do.  ``capacity_bytes`` makes the disk full, and
`flip_bit` lets it rot.

Thread-safety: none beyond the interpreter's; for single-threaded simulations, or threads that
don't touch the same file.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fasti.errors import DataDirLocked
from fasti.storage.files import File, Lock, checked_name, folder_of, replace_by_rename, translated
from fasti.storage.frames import flattened

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES = 512


class Crashed(BaseException):
    """The simulated process has died.

    Not an `Exception`, for no code of a dead process gets to handle it.
    """


class _Inode:
    """A file's two images, and which sectors differ because they were written since a sync."""

    def __init__(self, content: bytes = b"") -> None:
        self.seen = bytearray(content)
        self.durable = bytes(content)
        self.dirty: set[int] = set()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        end = offset + len(data)
        if end > len(self.seen):
            # A new object, because maps of the old length may be alive.
            self.seen = self.seen + bytes(end - len(self.seen))
        self.seen[offset:end] = data
        self.dirty.update(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def sync(self) -> None:
        self.durable = self._image(self.dirty, len(self.seen), None)
        self.dirty.clear()

    def _image(self, sectors: Iterable[int], size: int, torn: tuple[int, int] | None) -> bytes:
        """The durable bytes with these sectors new; ``torn`` is one of them and how much of it."""
        image = bytearray(self.durable[:size].ljust(size, b"\0"))
        for sector in sectors:
            start = sector * SECTOR_BYTES
            end = min(start + SECTOR_BYTES, size)
            if torn is not None and torn[0] == sector:
                end = min(start + torn[1], size)
            image[start:end] = self.seen[start:end]
        return bytes(image)

    def after_crash(self, rng: random.Random) -> bytes:
        dirty = sorted(self.dirty)
        fate = rng.choice(("none", "all", "first", "any", "torn"))
        if fate == "none" or (not dirty and len(self.seen) == len(self.durable)):
            return self.durable
        if fate == "all":
            return self._image(dirty, len(self.seen), None)
        size = rng.choice((len(self.durable), len(self.seen)))
        if fate == "any":
            survivors = [sector for sector in dirty if rng.random() < 0.5]
        else:
            survivors = dirty[: rng.randint(0, len(dirty))]
        torn = (
            (rng.choice(survivors), rng.randrange(SECTOR_BYTES))
            if fate == "torn" and survivors
            else None
        )
        return self._image(survivors, size, torn)


# A change of names: the file, its old name or None, its new name or None.
_Change = tuple[_Inode, str | None, str | None]


def _apply(names: dict[str, _Inode], change: _Change) -> None:
    """Do a change of names if it makes sense on its own."""
    inode, old, new = change
    if old is not None and names.get(old) is not inode:
        return
    if old is not None:
        del names[old]
    if new is not None:
        names[new] = inode


class SimulatedFile:
    """A `File` of a `SimulatedFiles`."""

    def __init__(self, disk: SimulatedFiles, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return len(self._inode.seen)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(flattened(buffers))
        if self._disk.step("write", self._name):
            self._inode.write(offset, data[: len(data) // 2])
            raise self._disk.fault(self._name)
        self._disk.allocate(self._name, offset + len(data) - self.size)
        self._inode.write(offset, data)
        return len(data)

    def sync(self) -> None:
        if self._disk.step("sync", self._name):
            self._inode.dirty.clear()
            raise self._disk.fault(self._name)
        self._inode.sync()

    def read_at(self, offset: int, length: int) -> bytes:
        if self._disk.step("read", self._name):
            raise self._disk.fault(self._name)
        return bytes(self._inode.seen[offset : offset + length])

    def map(self) -> memoryview:
        return memoryview(self._inode.seen).toreadonly()

    def busy(self) -> bool:
        try:
            # A bytearray can't be resized while a view of it exists.
            self._inode.seen.append(0)
        except BufferError:
            return True
        self._inode.seen.pop()
        return False

    def close(self) -> None:
        return


class SimulatedLock:
    """The right to a simulated disk; it ends with the process, so a crash frees it."""

    def __init__(self, disk: SimulatedFiles) -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.locked = False


class SimulatedFiles:
    """`Files` in memory, with crashes and faults as the module describes them."""

    def __init__(
        self, *, stop_before: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._changes: list[_Change] = []
        self._faults: list[list[int | str]] = []
        self._errno = errno.EIO
        self.locked = False
        self.operations = 0
        self.stop_before = stop_before
        self.capacity_bytes = capacity_bytes

    # ------------------------------------------------------------------ crashes and faults

    def crash(self, rng: random.Random) -> SimulatedFiles:
        """The disk as a new process would find it; this one is left as it is."""
        names = dict(self._durable_names)
        count = len(self._changes)
        fate = rng.choice(("none", "all", "first", "any"))
        survivors = {"none": 0, "all": count}.get(fate, rng.randint(0, count))
        for position, change in enumerate(self._changes):
            if (rng.random() < 0.5) if fate == "any" else position < survivors:
                _apply(names, change)
        after = SimulatedFiles(capacity_bytes=self.capacity_bytes)
        for name, inode in sorted(names.items()):
            after._names[name] = _Inode(inode.after_crash(rng))
        after._durable_names = dict(after._names)
        return after

    def fail(self, kind: str, nth: int = 1, error: int = errno.EIO) -> None:
        """Make the ``nth`` operation of that kind from now on fail with an errno.

        Kinds: write, sync, read, open, create, rename, delete, sync_directory.
        """
        self._faults.append([kind, nth, error])

    def heal(self) -> None:
        """Forget all faults that haven't happened yet."""
        self._faults.clear()

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        """Let one bit rot, in both images."""
        inode = self._names[name]
        inode.seen[offset] ^= 1 << bit
        durable = bytearray(inode.durable)
        durable[offset] ^= 1 << bit
        inode.durable = bytes(durable)

    def step(self, kind: str, name: str) -> bool:
        """Count an operation; True if it is to fail.  Raises `Crashed` at the chosen moment."""
        if kind not in ("read", "open"):
            if self.stop_before is not None and self.operations >= self.stop_before:
                raise Crashed(f"before operation {self.stop_before}: {kind} {name}")
            self.operations += 1
        failing = False
        for fault in self._faults:
            if fault[0] == kind:
                fault[1] = int(fault[1]) - 1
                if fault[1] == 0:
                    self._errno = int(fault[2])
                    failing = True
        return failing

    def fault(self, name: str) -> Exception:
        """The error of the operation that was just made to fail."""
        return translated(OSError(self._errno, os.strerror(self._errno)), name)

    def _step(self, kind: str, name: str) -> None:
        if self.step(kind, name):
            raise self.fault(name)

    def allocate(self, name: str, size_bytes: int) -> None:
        """Raise `StorageFull` if the disk has no room for so many bytes more."""
        if size_bytes > 0 and size_bytes > self.free_bytes():
            raise translated(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), name)

    # ------------------------------------------------------------------ Files

    def _change(self, inode: _Inode, old: str | None, new: str | None) -> None:
        _apply(self._names, (inode, old, new))
        self._changes.append((inode, old, new))

    def create(self, name: str, size_bytes: int) -> File:
        self._step("create", name)
        if checked_name(name) in self._names:
            raise translated(OSError(errno.EEXIST, os.strerror(errno.EEXIST)), name)
        self.allocate(name, size_bytes)
        inode = _Inode()
        self._change(inode, None, name)
        if size_bytes:
            inode.write(0, bytes(size_bytes))
            if self.step("sync", name):
                self._change(inode, name, None)
                raise self.fault(name)
            inode.sync()
        return SimulatedFile(self, name, inode)

    def _inode(self, name: str) -> _Inode:
        inode = self._names.get(checked_name(name))
        if inode is None:
            raise translated(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), name)
        return inode

    def open(self, name: str, writable: bool) -> File:
        self._step("open", name)
        return SimulatedFile(self, name, self._inode(name))

    def exists(self, name: str) -> bool:
        return checked_name(name) in self._names

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self._names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._step("delete", name)
        self._change(self._inode(name), name, None)

    def rename(self, old: str, new: str) -> None:
        self._step("rename", new)
        self._change(self._inode(old), old, checked_name(new))

    def replace(self, name: str, data: bytes) -> None:
        replace_by_rename(self, name, data)

    def sync_directory(self, name: str) -> None:
        self._step("sync_directory", name)
        waiting = []
        for change in self._changes:
            if name in {folder_of(path) for path in change[1:] if path is not None}:
                _apply(self._durable_names, change)
            else:
                waiting.append(change)
        self._changes = waiting

    @property
    def place(self) -> str | None:
        return None

    def identity(self, name: str) -> int:
        return 0

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 50
        return self.capacity_bytes - sum(len(inode.seen) for inode in self._names.values())

    def lock(self) -> Lock:
        if self.locked:
            pid = os.getpid()
            raise DataDirLocked(f"the disk is in use by process {pid}", pid=pid)
        self.locked = True
        return SimulatedLock(self)


if TYPE_CHECKING:
    from fasti.storage.files import Files

    _conforms: type[Files] = SimulatedFiles
