"""Settings of a shard, each with a default that needs no thought."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fasti.errors import InvalidArgument
from fasti.model import DAY_US, MINUTE_US, Limits


class Durability(StrEnum):
    """When a mutation is answered.

    `ALWAYS`: after its journal frame is synced. Nothing answered is lost, even in a power cut.
    `INTERVAL`: after it is written; syncs follow every `sync_interval_ms`. A crash of the process
    loses nothing, but a power cut or a crash of the machine can lose what was answered since the
    last sync, and deliver again what was acknowledged since then.
    """

    ALWAYS = "always"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How one shard keeps its data."""

    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = 100
    segment_bytes: int = 64 << 20
    # Memory for the metadata of pending messages; beyond it produce answers `overloaded`.
    memory_bytes: int = 8 << 30
    leases_max: int = 1 << 20
    # A checkpoint is begun when the journal has grown by this much since the last one, or a little later
    # while most of what it would write is about to be consumed.
    checkpoint_bytes: int = 256 << 20
    # Or by so many frames: each costs by itself when the journal is replayed, however small it is.
    checkpoint_frames: int = 32_768
    checkpoint_bytes_per_s: int = 80 << 20
    # All who take a backup read at most so fast, each.
    backup_bytes_per_s: int = 80 << 20
    # How often everything that is stored is read to find damage (0: never), and how fast.
    scrub_interval_us: int = 7 * DAY_US
    scrub_bytes_per_s: int = 16 << 20
    inbox_rows_max: int = 1_000_000
    # How far back the change feed reaches at least: the journal is kept so long, and no longer than
    # up to so many bytes.
    feed_age_us: int = 7 * DAY_US
    feed_bytes: int = 1 << 30
    # A thread that makes no progress for so long, though it has work, is told by health.
    stall_us: int = 30_000_000
    # A wall clock that leaps ahead by more is not believed until that has lasted.
    clock_leap_max_us: int = 5 * MINUTE_US
    clock_leap_lasts_us: int = 5 * MINUTE_US
    # A shard whose last event is further ahead of the wall clock is not opened.
    clock_behind_max_us: int = DAY_US
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in (
            "sync_interval_ms",
            "checkpoint_bytes",
            "checkpoint_frames",
            "checkpoint_bytes_per_s",
            "backup_bytes_per_s",
            "scrub_bytes_per_s",
            "stall_us",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name} must be positive", field=name, limit=1)
        for name in (
            *("feed_age_us", "feed_bytes", "scrub_interval_us"),
            *("clock_leap_max_us", "clock_leap_lasts_us", "clock_behind_max_us"),
        ):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} can't be negative", field=name, limit=0)
        if self.inbox_rows_max < self.limits.batch_rows_max:
            raise InvalidArgument(
                "inbox_rows_max must hold a whole batch",
                field="inbox_rows_max",
                limit=self.limits.batch_rows_max,
            )


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What connections to a broker's port may bring."""

    # Before the first call that was let in; it counts where calls need a token.
    first_bytes_max: int = 1 << 20
    first_call_us: int = 20_000_000
    # Connections that wait for their first call, all together.
    waiting_max: int = 256
    # Of a connection that is known: until a handler has received something.
    request_bytes_max: int = 512 << 20
