"""The words that every part of Fasti shares: states, outcomes, topic settings, ids.

Nothing here does I/O, reads a clock or keeps state. Units stand last in a name: `due_us` is
microseconds since the Unix epoch (UTC), `lease_us` a length in microseconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from typing import Any

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

# Any moment that fits, with room left for adding a delay without overflowing 63 bits.
DUE_MAX_US = (1 << 62) - 1

PARTITION_BITS = 12
SEQUENCE_BITS = 51
PARTITIONS_MAX = 1 << PARTITION_BITS
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
PRIORITY_MAX = 65_535

KINDS = ("timeline", "priority", "cron", "log", "kv")


class State(IntEnum):
    """What a message is. `ready` is no state of its own: it is `SCHEDULED` with its due past."""

    NONE = 0
    SCHEDULED = 1
    LEASED = 2
    DEAD = 3
    STAGED = 4
    DONE = 5
    CANCELLED = 6


class Outcome(IntEnum):
    """What became of one row of a mutation: the definite answer that every caller gets."""

    OK = 0
    CONFLICT = 1
    LEASED = 2
    DONE = 3
    CANCELLED = 4
    DEAD = 5
    NOT_FOUND = 6
    NOT_OWNER = 7
    STALE_LEASE = 8
    DUPLICATE = 9
    GONE = 10
    ABORTED = 11

    @property
    def word(self) -> str:
        """The name on the wire and in the SDK: `ok`, `conflict`, `stale_lease`, ..."""
        return self.name.lower()


class OnConflict(IntEnum):
    """What a produce does when a live message holds its key."""

    REJECT = 0
    REPLACE = 1
    KEEP = 2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a nacked message waits: `base * factor^(attempts-1)`, capped, with jitter.

    `factor=1` is a fixed delay. `jitter` is the share of the delay (0 to 1) that is spread; it
    is derived from the message's id and attempt, so that nothing depends on a random source.
    """

    base_us: int = SECOND_US
    factor: float = 2.0
    limit_us: int = HOUR_US
    jitter: float = 0.1


def back_off(first: float, failures: int, longest: float) -> float:
    """How long to wait after failures in a row: twice as long each time, up to the longest."""
    return min(first * 2 ** min(failures, 32), longest)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Everything that can be set on a topic. Frozen: a change makes a new one."""

    kind: str = "timeline"
    partitions: int = 1
    lease_us: int = 30 * SECOND_US
    hold_us: int = 12 * HOUR_US
    max_attempts: int = 16
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lookahead_us: int = 50_000
    outcome_age_us: int = 10 * MINUTE_US
    outcome_count: int = 1_000_000
    producer_age_us: int = 7 * DAY_US
    stage_age_us: int = DAY_US
    # priority: after so long a message counts one step more urgent, so that none starves; 0: off
    age_step_us: int = 0
    # log: whole segments go when all their rows are older; 0: kept
    segment_age_us: int = 0
    # log: a segment ends at this size (and after an eighth of segment_age)
    segment_bytes: int = 64 << 20
    # log: the oldest segments go when a partition has more than this; 0: no bound
    retained_bytes: int = 0
    # A topic with bindings keeps nothing itself: it only passes on.
    relay: bool = False
    # Deleted when it was not used for so long; 0: never
    idle_age_us: int = 0
    # On several shards: topics with the same word, partitions and width lie alike.
    home: str = ""
    # On several shards: over how many of them the partitions are spread; 0: all
    width: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for the journal and for people."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TopicSettings:
        """Back from `to_dict`. Unknown names are ignored: an older version wrote fewer."""
        names = {f.name for f in fields(cls)}
        fields_given = {name: value for name, value in values.items() if name in names}
        retry = fields_given.get("retry")
        if isinstance(retry, dict):
            fields_given["retry"] = RetryPolicy(**retry)
        return cls(**fields_given)

    def differences(self, other: TopicSettings) -> dict[str, tuple[Any, Any]]:
        """The settings that are not equal, by name: (mine, the other's)."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a caller may send. Beyond one, the whole command is refused."""

    payload_bytes_max: int = 1 << 20
    headers_bytes_max: int = 16 << 10
    key_bytes_max: int = 512
    subject_bytes_max: int = 255
    batch_bytes_max: int = 64 << 20
    batch_rows_max: int = 100_000
    reason_bytes_max: int = 1024
    name_bytes_max: int = 255
    topics_max: int = 10_000
    lease_us_min: int = SECOND_US
    lease_us_max: int = 12 * HOUR_US
    page_rows_max: int = 65_536
    consumers_waiting_max: int = 100_000
    snapshots_max: int = 64
    stages_max: int = 10_000
    # Producers that are remembered: those silent for longest are forgotten first.
    producers_max: int = 100_000
    # Sinks whose last batch is remembered.
    sinks_max: int = 10_000
    # Of one topic:
    bindings_max: int = 1_000
    groups_max: int = 1_000
    schedules_max: int = 1_000_000
    schedule_bytes_max: int = 64 << 10
    # Follow-readers and watchers of a broker.
    watchers_max: int = 1_000
    # What callers hold of a broker at a time. A session or produce stream costs it two threads.
    sessions_max: int = 3_000
    intakes_max: int = 2_000
    reads_max: int = 1_000
    calls_max: int = 2_000
    call_streams_max: int = 2_000
    backups_max: int = 4
    # Of the topics, those that callers of other callers get their replies in.
    inboxes_max: int = 4_000
    # Percent of each limit that callers share that one of them may use.
    caller_share: int = 50
    # How many messages a session may ask for ahead, and for how long it may say nothing.
    credit_max: int = 1 << 20
    session_silence_us: int = 10 * SECOND_US


def make_id(partition: int, sequence: int) -> int:
    """The id of a message: its partition and its sequence there, so that any id routes."""
    return partition << SEQUENCE_BITS | sequence


def partition_of(message_id: int) -> int:
    """The partition that an id routes to."""
    return message_id >> SEQUENCE_BITS


def sequence_of(message_id: int) -> int:
    """The sequence within its partition."""
    return message_id & SEQUENCE_MASK
