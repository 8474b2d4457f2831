"""Every setting of the broker, declared once.

A declaration gives the key in TOML (`limits.payload_max` is `payload_max` in `[limits]`), the flag
(`--limits-payload-max`), the environment variable (`FASTI_LIMITS_PAYLOAD_MAX`), the line in the
help and the row in docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasti.config import Durability, GuardSettings, ShardSettings
from fasti.model import Limits
from fasti.settings.values import (
    Address,
    Choice,
    FilePath,
    Length,
    Listen,
    Size,
    Switch,
    ValueKind,
    WholeNumber,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `field` is its name in `ShardSettings` or `Limits`, if it is one of theirs."""

    key: str
    kind: ValueKind
    default: Any
    meaning: str
    field: str = ""

    @property
    def flag(self) -> str:
        """As it is given on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """As it is given in the environment."""
        return "FASTI_" + self.name.upper()

    @property
    def name(self) -> str:
        """The key as an identifier."""
        return self.key.replace(".", "_")

    @property
    def section(self) -> str:
        """The TOML table it stands in; empty for the top."""
        return self.key.rpartition(".")[0]


_SHARD, _GUARD, _LIMITS = ShardSettings(), GuardSettings(), Limits()


def _shard(key: str, field: str, kind: ValueKind, meaning: str) -> Setting:
    return Setting(key, kind, getattr(_SHARD, field), meaning, field)


def _guard(key: str, field: str, kind: ValueKind, meaning: str) -> Setting:
    return Setting(f"guard.{key}", kind, getattr(_GUARD, field), meaning, field)


def _limit(key: str, field: str, kind: ValueKind, meaning: str) -> Setting:
    return Setting(f"limits.{key}", kind, getattr(_LIMITS, field), meaning, field)


BROKER: tuple[Setting, ...] = (
    Setting(
        "data", FilePath(), Path("fasti-data"), "The data directory; it is made if it isn't there."
    ),
    Setting(
        "clone",
        Switch(),
        False,
        "The data directory is a copy of another: it gets an incarnation of its own, once, before it is opened. See [backup](backup.md#copies-that-are-no-backups).",
    ),
    Setting(
        "listen",
        Listen(),
        Address("127.0.0.1", 7170),
        "Where clients connect (Arrow Flight). Port 0: any free one. Beyond loopback it asks for `tls_cert`, `tls_key` and `credentials`, or `insecure`.",
    ),
    Setting(
        "advertise",
        Listen(may_be_off=True),
        None,
        "The address by which clients reach this broker from wherever they are; or `off`. Plans of reads name it, and readers connect there. Without it they read where they asked.",
    ),
    Setting(
        "http",
        Listen(may_be_off=True),
        Address("127.0.0.1", 7180),
        "The port for `/healthz`, `/readyz` and `/metrics`, with the same rule; or `off`.",
    ),
    Setting(
        "tls_cert", FilePath(), None, "Certificate chain in PEM; with it both ports speak TLS only."
    ),
    Setting("tls_key", FilePath(), None, "Private key of the certificate, in PEM."),
    Setting(
        "tls_client_ca",
        FilePath(),
        None,
        "Certificates in PEM of the authority that signs clients' certificates; with it clients must show one at the port for clients. See [operating](operating.md#client-certificates).",
    ),
    Setting(
        "credentials",
        FilePath(),
        None,
        "The file of tokens that `fasti token create` writes; with it every call needs one. Changes count from the next call on.",
    ),
    Setting(
        "insecure",
        Switch(),
        False,
        "Listen beyond loopback without TLS or credentials: anyone who reaches the port may do anything.",
    ),
    Setting(
        "stop_within",
        Length("us"),
        20_000_000,
        "After SIGTERM: how long calls may finish and the last checkpoint may take. Nothing is lost beyond it; the next start replays more.",
    ),
    Setting(
        "metrics_series_max",
        WholeNumber(),
        50_000,
        "Series of one page of `/metrics`, about 80 bytes each. Beyond it partitions are added up, and the smallest topics and groups are left out; `fasti_metrics_series_left_out` tells how many.",
    ),
    Setting(
        "log_level",
        Choice(("debug", "info", "warning", "error")),
        "info",
        "What is logged, to stderr.",
    ),
    Setting(
        "log_format",
        Choice(("text", "json")),
        "text",
        "`text` for people, `json` for programs: an object per line.",
    ),
)

SHARD: tuple[Setting, ...] = (
    _shard(
        "memory",
        "memory_bytes",
        Size(least=1 << 20),
        "Memory for everything that the broker remembers: pending messages (32 bytes a row) and their keys, topics, groups, producers, schedules and the rest. Beyond it whatever takes more answers `overloaded`. See [operating](operating.md#memory) for what counts, and what comes on top.",
    ),
    Setting(
        "durability",
        Choice(tuple(Durability)),
        str(_SHARD.durability),
        "When a mutation is answered: `always` after its frame is synced, `interval` after it is written. See [operating](operating.md#durability).",
        "durability",
    ),
    _shard(
        "sync_interval",
        "sync_interval_ms",
        Length("ms"),
        "With `interval`, how long written frames wait for their sync at most.",
    ),
    _shard(
        "segment_size",
        "segment_bytes",
        Size(least=1 << 16),
        "Size of a journal segment file; it is allocated whole. A frame that is larger gets a segment of its own.",
    ),
    _shard(
        "checkpoint_size",
        "checkpoint_bytes",
        Size(),
        "A checkpoint begins when the journal has grown by this much since the last one.",
    ),
    _shard(
        "checkpoint_rate",
        "checkpoint_bytes_per_s",
        Size(),
        "How fast a checkpoint writes, per second, so that it doesn't stand in the way of the journal. It goes faster when the journal has grown far beyond `checkpoint_size`.",
    ),
    _shard(
        "backup_rate",
        "backup_bytes_per_s",
        Size(),
        "How fast a backup is read, per second, so that it doesn't stand in the way of the journal. A caller may ask for less.",
    ),
    _shard(
        "scrub_interval",
        "scrub_interval_us",
        Length("us"),
        "How often everything that is stored is read, to find [damage](operating.md#damage-and-what-to-do-about-it) before a reader does. 0: never.",
    ),
    _shard(
        "scrub_rate",
        "scrub_bytes_per_s",
        Size(),
        "How fast that is read, per second.",
    ),
    _shard(
        "feed_age",
        "feed_age_us",
        Length("us"),
        "How far back the change feed reaches: the journal is kept for so long after it is needed for anything else, if `feed_size` allows it. See [the change feed](guides/changes.md).",
    ),
    _shard(
        "feed_size",
        "feed_bytes",
        Size(least=0),
        "How much of the journal is kept for the change feed at most. When the disk is full it is given up first.",
    ),
    _shard(
        "stall_after",
        "stall_us",
        Length("us"),
        "A thread of the broker that makes no progress for so long, though it has work, is told in the log, and by `/healthz` as 503. See [operating](operating.md#when-a-thread-stops).",
    ),
    _shard(
        "clock_leap_max",
        "clock_leap_max_us",
        Length("us"),
        "A wall clock that leaps ahead by more is not believed at first. See [the clock](operating.md#the-clock).",
    ),
    _shard(
        "clock_leap_lasts",
        "clock_leap_lasts_us",
        Length("us"),
        "How long such a leap must have lasted to be believed. `fasti clock accept` says so at once.",
    ),
    _shard(
        "clock_behind_max",
        "clock_behind_max_us",
        Length("us"),
        "At the start: by how much the wall clock may be behind the last event on disk. Beyond it the broker does not start, because one of them is wrong.",
    ),
    _shard(
        "leases_max",
        "leases_max",
        WholeNumber(),
        "How many leases may be out at a time. Beyond it nothing more is handed out until one ends.",
    ),
    _shard(
        "inbox_rows_max",
        "inbox_rows_max",
        WholeNumber(),
        "Rows that may wait for the sequencer. Beyond it produce answers `overloaded`, beyond twice as many everything does. At least `limits.batch_rows_max`.",
    ),
)

GUARD: tuple[Setting, ...] = (
    _guard(
        "first_bytes_max",
        "first_bytes_max",
        Size(),
        "With `credentials`: bytes that a connection may bring before a call of it was let in; then it is ended.",
    ),
    _guard(
        "first_call_within",
        "first_call_us",
        Length("us"),
        "A connection of which no call was let in for so long is ended.",
    ),
    _guard(
        "waiting_max",
        "waiting_max",
        WholeNumber(),
        "Connections that may wait for their first call; the oldest is ended when there are more.",
    ),
    _guard(
        "request_max",
        "request_bytes_max",
        Size(),
        "Bytes that a connection may bring until the broker has received a request or a batch from it; then it is ended. At least twice `limits.batch_max`.",
    ),
)

LIMITS: tuple[Setting, ...] = (
    _limit("payload_max", "payload_bytes_max", Size(), "Bytes of one payload."),
    _limit(
        "headers_max",
        "headers_bytes_max",
        Size(),
        "Bytes of one message's header names and values together.",
    ),
    _limit("key_max", "key_bytes_max", Size(), "Bytes of a key, as UTF-8."),
    _limit("subject_max", "subject_bytes_max", Size(), "Bytes of a subject, as UTF-8."),
    _limit("batch_max", "batch_bytes_max", Size(), "Bytes of one batch."),
    _limit("batch_rows_max", "batch_rows_max", WholeNumber(), "Rows of one batch."),
    _limit("reason_max", "reason_bytes_max", Size(), "Bytes of the reason of a nack or reject."),
    _limit("name_max", "name_bytes_max", Size(), "Bytes of a topic's, owner's or consumer's name."),
    _limit("topics_max", "topics_max", WholeNumber(), "Topics of a shard."),
    _limit("lease_min", "lease_us_min", Length("us"), "The shortest lease."),
    _limit("lease_max", "lease_us_max", Length("us"), "The longest lease."),
    _limit("page_rows_max", "page_rows_max", WholeNumber(), "Rows of one page of a list."),
    _limit(
        "consumers_waiting_max",
        "consumers_waiting_max",
        WholeNumber(),
        "Sessions that may wait for messages of one topic.",
    ),
    _limit("snapshots_max", "snapshots_max", WholeNumber(), "Snapshots that may be open."),
    _limit("stages_max", "stages_max", WholeNumber(), "Stages that may be open."),
    _limit(
        "producers_max",
        "producers_max",
        WholeNumber(),
        "Producers whose last batches are remembered. Beyond it those silent for longest are forgotten, none within an hour of its last batch; until then a new one is refused.",
    ),
    _limit(
        "sinks_max",
        "sinks_max",
        WholeNumber(),
        "Sinks whose last batch is remembered; one more is refused until one is forgotten.",
    ),
    _limit("bindings_max", "bindings_max", WholeNumber(), "Bindings of one topic."),
    _limit("groups_max", "groups_max", WholeNumber(), "Consumer groups of one log."),
    _limit("schedules_max", "schedules_max", WholeNumber(), "Schedules of one topic."),
    _limit(
        "schedule_max", "schedule_bytes_max", Size(), "Bytes of one schedule, payload included."
    ),
    _limit(
        "watchers_max", "watchers_max", WholeNumber(), "Follow-readers and watchers of the broker."
    ),
    _limit(
        "sessions_max",
        "sessions_max",
        WholeNumber(),
        "Sessions that may be open: consumers, followers, watchers. Each costs the broker two threads.",
    ),
    _limit(
        "intakes_max",
        "intakes_max",
        WholeNumber(),
        "Produce streams that may be open. Each costs the broker two threads.",
    ),
    _limit("reads_max", "reads_max", WholeNumber(), "Reads that may be under way."),
    _limit("calls_max", "calls_max", WholeNumber(), "Calls that may be under way."),
    _limit("backups_max", "backups_max", WholeNumber(), "Backups that may be under way."),
    _limit(
        "inboxes_max",
        "inboxes_max",
        WholeNumber(),
        "Of the topics, inboxes in which callers wait for replies.",
    ),
    _limit(
        "caller_share",
        "caller_share",
        WholeNumber(most=100),
        "How many percent of each limit that callers share one of them may use. See [operating](operating.md#limits-that-callers-share).",
    ),
    _limit(
        "credit_max",
        "credit_max",
        WholeNumber(),
        "Messages that one session may have asked for and not got yet.",
    ),
    _limit(
        "session_silence",
        "session_silence_us",
        Length("us"),
        "How long nothing may come from a consumer's session. Half of that, and it gets nothing more; beyond it is ended. See [operating](operating.md#silent-consumers).",
    ),
)

SETTINGS: tuple[Setting, ...] = (*BROKER, *SHARD, *GUARD, *LIMITS)
BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS}
