"""What can be asked of key-value topics, and what they ask of storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import ByIds, ByKeys, BySequences, Command, WithPayloads
from fasti.core.commands import When
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Asked
from fasti.errors import FastiError

Int64s = NDArray[np.int64]
ANY_VERSION = -1


@dataclass(slots=True)
class KvPut(WithPayloads):
    """Values by key. A version: -1 any, 0 must not exist, else must be equal."""

    is_bulk: ClassVar[bool] = True
    topic: str
    rows: Rows
    keys: Keys
    versions: Int64s | int = ANY_VERSION
    # None: kept for ever. Columns have DUE_MAX_US where a row has no expiry.
    expires: When | None = None


@dataclass(slots=True)
class KvDelete(ByKeys):
    """Entries go. `rows` bring the keys' bytes into the journal.

    They take space only for a while, so they don't count: entries go when the disk is full, too.
    """

    topic: str
    rows: Rows
    keys: Keys
    versions: Int64s | int = ANY_VERSION

    def encode(self) -> int:
        """Encodes the keys."""
        self.rows.encoded  # noqa: B018
        return 0


@dataclass(slots=True)
class KvGet(ByKeys):
    """Entries by key: `KvFound`."""

    topic: str
    keys: Keys


@dataclass(slots=True)
class KvRows(ByIds):
    """The same by ids: of a scan's candidates those that are there."""

    topic: str
    ids: Int64s


@dataclass(slots=True)
class KvDescribe(Command):
    """How many entries there are, and the position as of which that holds."""

    topic: str


@dataclass(slots=True)
class KvFound:
    """Where `status` is ok: version, expiry (DUE_MAX_US: never) and place of the value."""

    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s
    expires_us: Int64s
    locations: Int64s
    # The last frame that had happened: whoever watches from there misses nothing.
    position: int
    error: FastiError | None = None

    def only(self, rows: NDArray[np.intp]) -> KvFound:
        """Of these entries some."""
        return KvFound(
            self.status[rows],
            self.ids[rows],
            self.versions[rows],
            self.expires_us[rows],
            self.locations[rows],
            self.position,
        )


@dataclass(slots=True)
class KvExpire(BySequences):
    """Storage answers LoadRemoved. Without rows reading failed: they are asked for again."""

    topic: int
    partition: int
    sequences: Int64s
    versions: NDArray[np.uint32]
    rows: Rows | None = None

    def encode(self) -> int:
        """Encodes the keys, which don't count, as those of `KvDelete`."""
        if self.rows is not None:
            self.rows.encoded  # noqa: B018
        return 0


@dataclass(slots=True)
class LoadRemoved(Asked):
    """Please read the keys of entries that have expired: they are to be removed."""

    topic: int
    partition: int
    sequences: Int64s
    versions: NDArray[np.uint32]
    locations: Int64s

    def failed(self) -> KvExpire:
        """They could not be read."""
        return KvExpire(self.topic, self.partition, self.sequences, self.versions)
