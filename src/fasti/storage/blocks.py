"""Blocks: immutable, named pieces of what is derived from the journal, and the manifest.

`BlockStore` is the second seam to the storage engine.  Its rules, which one conformance suite
checks on every kind:

* A block is written once, whole, under a name that was never used before, and never changed.
  It can be read as soon as `put` returned.
* `put` makes the bytes durable, `sync` the names: after a crash in between a block is there
  whole or not at all.  So many puts can share one `sync`.  `delete`, too, is durable after
  `sync`.
* The manifest says which blocks count.  It has a version, from 1 up, and is switched atomically
  by the writer that names the version which it replaces; any other switch is `Fenced`.  A switch syncs the
  names of all blocks first, so no durable manifest names a block that is missing.

Thread-safety: all methods, from any thread; two puts of one name at a time are the caller's
mistake and one of them raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fasti.errors import Corruption, Fenced, InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST_NAME = "MANIFEST"
TEMPORARY = ".tmp"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")


class BlockStore(Protocol):
    """Named immutable blocks and one manifest."""

    def put(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new block; its bytes are durable on return, its name after `sync`.

        Raises `AlreadyExists`, or `StorageFull` with nothing left behind.
        """

    def sync(self) -> None:
        """Make the names of all blocks put, and all deletions, durable."""

    def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        """A range of a block, without copying where possible; good for as long as it is held.

        Raises `NotFound`, or `Corruption` if the block is shorter than the range.
        """

    def size(self, name: str) -> int:
        """The length of a block; `NotFound` if there is none."""

    def list(self, prefix: str = "") -> list[str]:
        """The names of all blocks that begin with ``prefix``, sorted."""

    def delete(self, name: str) -> None:
        """Remove a block; `NotFound` if there is none.  Views of it stay good."""

    def readable(self, name: str) -> memoryview:
        """A copy of a block that `get` can't read, with zeros in place of what the disk can't give.

        Raises `NotFound`, or what `get` raised if nothing of it can be read.
        """

    def let_go(self, name: str) -> None:
        """Keep nothing of a block: the next `get` reads what is there then."""

    def read_manifest(self) -> tuple[int, bytes] | None:
        """The manifest's version and data, or None before the first switch."""

    def switch_manifest(self, expected_version: int, data: bytes) -> int:
        """Replace the manifest and return its new version; durable on return.

        ``expected_version`` is the one to be replaced, 0 for none; `Fenced` if it is another.
        """


def checked_range(view: memoryview, name: str, offset: int, length: int | None) -> memoryview:
    """A range of a block, as `BlockStore.get` gives it."""
    end = len(view) if length is None else offset + length
    if not 0 <= offset <= end <= len(view):
        raise Corruption(
            f"block {name} has {len(view)} bytes, {offset} to {end} were requested",
            file=f"blocks/{name}",
            offset=len(view),
        )
    return view[offset:end]


def check_version(version: int, expected: int) -> None:
    """Raises `Fenced` unless a switch names the version that it replaces."""
    if version != expected:
        raise Fenced(
            f"the manifest has version {version}, not {expected}",
            details={"expected": expected, "found": version},
        )


def checked_block_name(name: str) -> str:
    """The name itself, if a block may have it."""
    if not _NAME.fullmatch(name) or name.endswith(TEMPORARY) or name == MANIFEST_NAME:
        raise InvalidArgument(f"{name!r} is not a block name", field="name", limit=_NAME.pattern)
    return name
