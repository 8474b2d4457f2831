"""Every setting of the broker, declared once.

A declaration gives the key in TOML (`limits.payload_max` is `payload_max` in `[limits]`), the flag
(`--limits-payload-max`), the environment variable (`FASTI_LIMITS_PAYLOAD_MAX`), the line in the
help and the row in docs/settings.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasti.config import Durability, GuardSettings, ShardSettings
from fasti.model import Limits
from fasti.settings.cluster import HttpUrls, NatsUrls, Weight, Word
from fasti.settings.peers import SHARDS_MAX, Peers, ShardNumbers
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


# A field of the library's settings tells by its unit what values it takes, and its key is its name
# without the unit; these have a better one.
_UNIT = re.compile("_(bytes|us|ms)(?=_|$)")
_KEYS = {
    "segment_bytes": "segment_size",
    "checkpoint_bytes": "checkpoint_size",
    "checkpoint_bytes_per_s": "checkpoint_rate",
    "backup_bytes_per_s": "backup_rate",
    "scrub_bytes_per_s": "scrub_rate",
    "feed_bytes": "feed_size",
    "stall_us": "stall_after",
    "first_bytes_max": "first_bytes_max",
    "first_call_us": "first_call_within",
}
_KINDS: dict[str, ValueKind] = {
    "durability": Choice(tuple(Durability)),
    "memory_bytes": Size(least=1 << 20),
    "segment_bytes": Size(least=1 << 16),
    "scrub_interval_us": Length("us", least=0),
    "feed_age_us": Length("us", least=0),
    "feed_bytes": Size(least=0),
    "caller_share": WholeNumber(most=100),
}
_KINDS_BY_UNIT: dict[str, ValueKind] = {"bytes": Size(), "us": Length("us"), "ms": Length("ms")}


def _of_library(section: str, defaults: object, meanings: dict[str, str]) -> tuple[Setting, ...]:
    return tuple(_of_field(section, defaults, *item) for item in meanings.items())


def _of_field(section: str, defaults: object, field: str, meaning: str) -> Setting:
    key = section + (_KEYS.get(field) or _UNIT.sub("", field))
    unit = _UNIT.search(field)
    kind = _KINDS.get(field) or (_KINDS_BY_UNIT[unit[1]] if unit else WholeNumber())
    return Setting(key, kind, getattr(defaults, field), meaning, field)


BROKER: tuple[Setting, ...] = (
    Setting(
        "data", FilePath(), Path("fasti-data"), "The data directory; created if it doesn't exist."
    ),
    Setting(
        "clone",
        Switch(),
        False,
        "The data directory is a copy of another: it gets an incarnation of its own, once, before it is opened. See [backup](backup.md#copies-that-are-no-backups).",
    ),
    Setting(
        "shards",
        WholeNumber(most=SHARDS_MAX),
        None,
        "How many shards the data directory has: fixed when it is made, 1 if nothing is said then. Given later it must be the same number. See [several shards](operating.md#several-shards-and-processes).",
    ),
    Setting(
        "processes",
        WholeNumber(most=SHARDS_MAX),
        1,
        "How many processes serve the shards, at most one for each. They listen at the port of `listen` and those that follow it, and one more process, which starts them, looks after them.",
    ),
    Setting(
        "peers",
        Peers(),
        None,
        "Where each process of the broker is and which shards it has, for processes that are started one by one instead of by `processes`: the same map for all of them, like `0-1=127.0.0.1:7170,2-3=127.0.0.1:7171`. They run on one machine, with one data directory.",
    ),
    Setting(
        "serve_shards",
        ShardNumbers(),
        None,
        "With `peers`: the shards of this process, as the map has them. Without it, those at the address of `advertise` or `listen`.",
    ),
    Setting(
        "cluster",
        Word(),
        None,
        "The cluster to join, by its name. Its messages are kept by NATS JetStream, in streams whose names begin with this one. `shards` is fixed when the first broker makes the cluster, 12 if nothing is said then; `data` has a cache only.",
    ),
    Setting(
        "nats",
        NatsUrls(),
        None,
        "With `cluster`: the NATS servers, like `nats://10.0.0.1:4222,nats://10.0.0.2:4222`.",
    ),
    Setting(
        "nats_replicas",
        WholeNumber(most=5),
        3,
        "With `cluster`: how many NATS servers keep each stream. 1 survives no lost server.",
    ),
    Setting(
        "nats_journal_size",
        Size(least=64 << 20),
        1 << 30,
        "With `cluster`: how much of the journal NATS keeps of each shard at most, on each of its servers. They must have room for it for all shards. The same for all brokers of a cluster.",
    ),
    Setting(
        "nats_blocks_size",
        Size(least=64 << 20),
        None,
        "With `cluster`: how much NATS keeps of each shard's messages beside the journal at most, on each of its servers, which set so much aside. Without it, what the servers' `max_file` leaves. The same for all brokers of a cluster.",
    ),
    Setting(
        "max_skew",
        Length("us", least=10_000),
        250_000,
        "With `cluster`: by how much a broker's clock may be off the median of all brokers' before it hands its shards over. The same for all brokers of a cluster.",
    ),
    Setting(
        "nats_credentials",
        FilePath(),
        None,
        "With `cluster`: a file by which NATS knows this broker: a `.creds` file, or one line with `user:password` or a token. These may also stand in the addresses, like `nats://user:password@10.0.0.1`.",
    ),
    Setting(
        "nats_ca",
        FilePath(),
        None,
        "With `cluster`: a file of certificates; NATS is reached by TLS, and its servers are checked against them.",
    ),
    Setting(
        "standbys",
        WholeNumber(least=0, most=2),
        1,
        "With `cluster`: how many brokers beside its leader follow each shard, ready to take it over. Each has in memory what the leader has. The same for all brokers of a cluster.",
    ),
    Setting(
        "nats_cert",
        FilePath(),
        None,
        "With `cluster`: a certificate by which NATS knows this broker, for servers that ask for one.",
    ),
    Setting("nats_key", FilePath(), None, "With `cluster`: the key of `nats_cert`."),
    Setting(
        "nats_system_credentials",
        FilePath(),
        None,
        "With `cluster`: a file as in `nats_credentials`, of a user of NATS's system account. With it the servers are asked for their settings, and for damage.",
    ),
    Setting(
        "nats_monitors",
        HttpUrls(),
        None,
        "With `cluster`: the monitoring ports of all NATS servers, like `http://10.0.0.1:8222,http://10.0.0.2:8222`; they are asked instead, where there is no `nats_system_credentials`. Without both, port 8222 of the servers is tried.",
    ),
    Setting(
        "nats_unchecked",
        Switch(),
        False,
        "With `cluster`: start even if a NATS server acknowledges what it has not synced, is too old, or can't be asked. A power cut may then lose what was acknowledged.",
    ),
    Setting(
        "nats_packs_size",
        Size(least=0),
        256 << 20,
        "With `cluster`: how many bytes of each shard's journal this broker keeps on its own disk as well, against damage of NATS's files; 0: none.",
    ),
    Setting(
        "nats_wait",
        Length("us", least=0),
        60_000_000,
        "With `cluster`: how long a broker that starts waits until NATS is there and keeps streams.",
    ),
    Setting(
        "broker_name",
        Word(),
        None,
        "With `cluster`: this broker's name, which no other broker of the cluster has. Without it, its address.",
    ),
    Setting(
        "weight",
        Weight(),
        1.0,
        "With `cluster`: this broker's share of the shards. One of weight 2 leads about twice as many as one of weight 1; with 0 it leads none and stands by for none, as if it had been drained.",
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

SHARD = _of_library(
    "",
    ShardSettings(),
    {
        "memory_bytes": "Memory for everything that the broker remembers: pending messages (32 bytes a row) and their keys, topics, groups, producers, schedules and the rest. Beyond it whatever takes more answers `overloaded`. See [operating](operating.md#memory) for what counts, and what comes on top.",
        "durability": "When a mutation is answered: `always` after its frame is synced, `interval` after it is written. See [operating](operating.md#durability).",
        "sync_interval_ms": "With `interval`, how long written frames wait for their sync at most.",
        "segment_bytes": "Size of a journal segment file; it is allocated whole. A frame that is larger gets a segment of its own.",
        "checkpoint_bytes": "A checkpoint begins when the journal has grown by this much since the last one, over all shards of a process; by up to four times as much, for ten seconds at most, while most of what it would write is about to be consumed.",
        "checkpoint_frames": "The same by frames of the journal, for messages that come one by one: each takes some tenths of a millisecond when it is replayed, however small it is. What has grown by half of both counts as whole.",
        "checkpoint_bytes_per_s": "How fast a checkpoint writes, per second, so that it doesn't stand in the way of the journal. It goes faster when the journal has grown far beyond `checkpoint_size`.",
        "backup_bytes_per_s": "How fast a backup is read, per second, so that it doesn't stand in the way of the journal. A caller may ask for less.",
        "scrub_interval_us": "How often everything that is stored is read, to find [damage](operating.md#damage-and-what-to-do-about-it) before a reader does. `0s`: never.",
        "scrub_bytes_per_s": "How fast that is read, per second.",
        "feed_age_us": "How far back the change feed reaches: the journal is kept for so long after it is needed for anything else, if `feed_size` allows it. See [the change feed](guides/changes.md).",
        "feed_bytes": "How much of the journal is kept for the change feed at most, over all shards of a process. When the disk is full it is given up first.",
        "stall_us": "A thread of the broker that makes no progress for so long, though it has work, is reported in the log, and by `/healthz` as 503. See [operating](operating.md#when-a-thread-stops).",
        "clock_leap_max_us": "A wall clock that leaps ahead by more is not believed at first. See [the clock](operating.md#the-clock).",
        "clock_leap_lasts_us": "How long such a leap must have lasted to be believed. `fasti clock accept` says so at once.",
        "clock_behind_max_us": "At the start: by how much the wall clock may be behind the last event on disk. Beyond it the broker does not start, because one of them is wrong.",
        "leases_max": "How many leases may be out at a time. Beyond it nothing more is handed out until one ends.",
        "inbox_rows_max": "Rows that may wait for the sequencer. Beyond it produce answers `overloaded`, beyond twice as many everything does. At least `limits.batch_rows_max`.",
    },
)

GUARD = _of_library(
    "guard.",
    GuardSettings(),
    {
        "first_bytes_max": "With `credentials`: bytes that a connection may bring before a call of it was let in; then it is ended.",
        "first_call_us": "A connection of which no call was let in for so long is ended.",
        "waiting_max": "Connections that may wait for their first call; the oldest is ended when there are more.",
        "request_bytes_max": "Bytes that a connection may bring until the broker has received a request or a batch from it; then it is ended. At least twice `limits.batch_max`.",
    },
)

LIMITS = _of_library(
    "limits.",
    Limits(),
    {
        "payload_bytes_max": "Bytes of one payload.",
        "headers_bytes_max": "Bytes of one message's header names and values together.",
        "key_bytes_max": "Bytes of a key, as UTF-8.",
        "subject_bytes_max": "Bytes of a subject, as UTF-8.",
        "batch_bytes_max": "Bytes of one batch.",
        "batch_rows_max": "Rows of one batch.",
        "reason_bytes_max": "Bytes of the reason of a nack or reject.",
        "name_bytes_max": "Bytes of a topic's, owner's or consumer's name.",
        "topics_max": "Topics of a shard.",
        "lease_us_min": "The shortest lease.",
        "lease_us_max": "The longest lease.",
        "page_rows_max": "Rows of one page of a list.",
        "consumers_waiting_max": "Sessions that may wait for messages of one topic.",
        "snapshots_max": "Snapshots that may be open.",
        "stages_max": "Stages that may be open.",
        "producers_max": "Producers whose last batches are remembered. Beyond it those silent for longest are forgotten, none within an hour of its last batch; until then a new one is refused.",
        "sinks_max": "Sinks whose last batch is remembered; one more is refused until one is forgotten.",
        "bindings_max": "Bindings of one topic.",
        "groups_max": "Consumer groups of one log.",
        "schedules_max": "Schedules of one topic.",
        "schedule_bytes_max": "Bytes of one schedule, payload included.",
        "watchers_max": "Follow-readers and watchers of the broker.",
        "sessions_max": "Sessions that may be open: consumers, followers, watchers. Each costs the broker two threads.",
        "intakes_max": "Produce streams that may be open. Each costs the broker two threads.",
        "reads_max": "Reads that may be under way.",
        "calls_max": "Calls that may be under way.",
        "call_streams_max": "Streams of small calls that may be open. Each costs the broker a thread; clients that get none make single calls.",
        "backups_max": "Backups that may be under way.",
        "inboxes_max": "Of the topics, inboxes in which callers wait for replies.",
        "caller_share": "How many percent of each limit that callers share one of them may use. See [operating](operating.md#limits-that-callers-share).",
        "credit_max": "Messages that one session may have asked for and not got yet.",
        "session_silence_us": "How long nothing may come from a consumer's session. Half of that, and it gets nothing more; beyond it is ended. See [operating](operating.md#silent-consumers).",
    },
)

SETTINGS: tuple[Setting, ...] = (*BROKER, *SHARD, *GUARD, *LIMITS)
BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS}
