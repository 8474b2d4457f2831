"""What can be asked of key-value topics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import When
from fasti.core.keys import Keys, Rows

Int64s = NDArray[np.int64]
ANY_VERSION = -1


@dataclass(slots=True)
class KvPut:
    """Values by key. A version: -1 any, 0 must not exist, else must be equal."""

    topic: str
    rows: Rows
    keys: Keys
    versions: Int64s | int = ANY_VERSION
    # None: kept for ever. Columns have DUE_MAX_US where a row has no expiry.
    expires: When | None = None


@dataclass(slots=True)
class KvDelete:
    """Entries go. `rows` bring the keys' bytes into the journal (they don't count as payload)."""

    topic: str
    rows: Rows
    keys: Keys
    versions: Int64s | int = ANY_VERSION


@dataclass(slots=True)
class KvGet:
    """Messages: status, version, due (expiry) and location of each key."""

    topic: str
    keys: Keys


@dataclass(slots=True)
class KvRows:
    """The same by ids: of a scan's candidates those that are there."""

    topic: str
    ids: Int64s


@dataclass(slots=True)
class KvExpire:
    """Storage answers LoadRemoved. Without rows reading failed: they are asked for again."""

    topic: str
    ids: Int64s
    versions: Int64s
    rows: Rows | None = field(default=None)
