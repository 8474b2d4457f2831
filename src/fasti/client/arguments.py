"""The types of what callers give, for editors and type checkers; nothing here is checked at run time.

Where a call takes one value or a column of them, the column may be a list, a numpy array or an
Arrow array. pyarrow ships no types, so Arrow arrays are described by what they have: the Arrow C
interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from fasti.client.durations import Duration
from fasti.config import Durability, ShardSettings
from fasti.model import Limits, RetryPolicy

if TYPE_CHECKING:
    import os

    from fasti.client.topics import Backoff

ArrowTable = Any
"""A `pyarrow.Table`. Named so, because to a strict checker what comes of an untyped package is
unknown, and so would be every call that may give one."""

ArrowBatch = Any
"""A `pyarrow.RecordBatch`."""

Kind = Literal["timeline", "priority", "cron", "log", "kv"]
"""What a topic is."""

MessageState = Literal["scheduled", "ready", "leased", "dead"]
"""What a message that is listed can be."""

Status = Literal[
    "ok",
    "conflict",
    "leased",
    "done",
    "cancelled",
    "dead",
    "not_found",
    "not_owner",
    "stale_lease",
    "duplicate",
    "gone",
    "aborted",
]
"""What became of a message that a call named."""

Gap = Literal["shift", "skip"]
Fold = Literal["first", "second", "both"]
Misfire = Literal["once", "skip", "all"]
Overlap = Literal["allow", "skip", "cancel"]

Moment = datetime | int
"""An aware `datetime`, or whole microseconds since the Unix epoch."""


class ArrowArray(Protocol):
    """An Arrow array of any library."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class ArrowColumn(Protocol):
    """An Arrow column of any library: a chunked array."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


# Of texts, `Sequence` would take a single one for a column of letters.
Texts = (
    list[str] | tuple[str, ...] | NDArray[np.str_] | NDArray[np.object_] | ArrowArray | ArrowColumn
)
Integers = Sequence[int] | NDArray[np.integer[Any]] | ArrowArray | ArrowColumn
Moments = Sequence[datetime] | Sequence[int] | NDArray[np.integer[Any]] | ArrowArray | ArrowColumn
Durations = (
    list[str]
    | list[timedelta]
    | Sequence[float]
    | NDArray[np.number[Any]]
    | ArrowArray
    | ArrowColumn
)
Payloads = Sequence[bytes] | ArrowArray | ArrowColumn
Headers = Mapping[str, str]


class MessageMetadata(TypedDict):
    """What `Messages.get` tells of a message without its payload."""

    id: int
    partition: int
    state: MessageState
    due_us: int
    version: int
    attempts: int
    owner: str | None
    consumer: str | None
    reason: str | None
    priority: int
    leased_us: int | None
    lease_until_us: int | None
    died_us: int | None


class PendingMessage(MessageMetadata):
    """What `Messages.get` tells of a message."""

    created_us: int
    key: str | None
    headers: dict[str, str] | None
    content_type: str | None
    subject: str | None
    payload: bytes


class TopicSettingOptions(TypedDict, total=False):
    """What `change_topic` takes: the settings of `fasti.model.TopicSettings`.

    Lengths of time are given as `lease="30s"`, or in microseconds as `lease_us=30_000_000`.
    """

    lease: Duration
    lease_us: int
    hold: Duration
    hold_us: int
    max_attempts: int
    retry: Backoff | RetryPolicy | dict[str, Any]
    lookahead: Duration
    lookahead_us: int
    outcome_age: Duration
    outcome_age_us: int
    outcome_count: int
    producer_age: Duration
    producer_age_us: int
    stage_age: Duration
    stage_age_us: int
    age_step: Duration
    age_step_us: int
    segment_age: Duration
    segment_age_us: int
    segment_bytes: int
    retained_bytes: int
    relay: bool
    idle_age: Duration
    idle_age_us: int


class TopicOptions(TopicSettingOptions, total=False):
    """What `create_topic` takes besides the name and the kind."""

    partitions: int
    home: str
    width: int


class ScheduleOptions(TypedDict, total=False):
    """What `Schedules.put` takes besides the name and the target."""

    cron: str | None
    every: Duration | None
    timezone: str
    payload: bytes | str
    template: bool
    headers: Headers | None
    content_type: str | None
    subject: str | None
    priority: int
    expires: Duration | None
    start: Moment | None
    end: Moment | None
    jitter: Duration | None
    gap: Gap
    fold: Fold
    misfire: Misfire
    misfire_max: int
    misfire_grace: Duration
    overlap: Overlap


class EmbeddedOptions(TypedDict, total=False):
    """What `connect("embedded:...")` takes: one `settings`, or the fields of `ShardSettings`; whether
    the directory is a copy that gets a name of its own; and how many shards a new directory gets.
    """

    clone: bool
    shards: int | None
    settings: ShardSettings
    durability: Durability | Literal["always", "interval"]
    sync_interval_ms: int
    segment_bytes: int
    memory_bytes: int
    leases_max: int
    checkpoint_bytes: int
    checkpoint_frames: int
    checkpoint_bytes_per_s: int
    backup_bytes_per_s: int
    inbox_rows_max: int
    feed_age_us: int
    feed_bytes: int
    stall_us: int
    scrub_interval_us: int
    scrub_bytes_per_s: int
    clock_leap_max_us: int
    clock_leap_lasts_us: int
    clock_behind_max_us: int
    limits: Limits


class ConnectionOptions(EmbeddedOptions, total=False):
    """What `App` passes on to `connect`."""

    token: str | None
    tls_ca: str | os.PathLike[str] | bytes | None
    tls_client_cert: str | os.PathLike[str] | bytes | None
    timeout: Duration


class ConnectOptions(ConnectionOptions, total=False):
    """What `connect` takes besides the address and `on_failure`."""

    owner: str
