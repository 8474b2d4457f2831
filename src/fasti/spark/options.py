"""The options of `format("fasti")`: each declared once, checked before anything else happens.

Spark hands options over as text, with names in any case. Unknown names, missing ones and values that
make no sense are refused with what was expected, by `invalid_argument`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fasti.client.address import known_address, parse_address
from fasti.client.durations import duration_us
from fasti.errors import InvalidArgument
from fasti.spark.connection import located

VIEWS = ("messages", "changes", "log", "kv")
_DEFAULT_ADDRESS = "127.0.0.1:7170"
STREAMED = ("changes", "log")
STATES = ("scheduled", "ready", "leased", "dead")
OPERATIONS = ("produce", "update", "move", "cancel", "put")
# What rows of the change feed tell, in the order in which the guide to it has them.
OPS = (
    "produced", "staged", "published", "stage_dropped", "stage_published", "sink_published",
    "sink_forgotten", "replaced", "updated", "moved", "expiry_set", "reprioritised", "cancelled", "leased",
    "resumed", "extended", "renewed", "released", "nacked", "expired", "acked", "rejected",
    "exhausted", "lapsed", "redriven", "purged", "appended", "log_trimmed", "put", "deleted",
    "expired_entry", "topic_created", "topic_changed", "topic_deleted", "topic_paused",
    "topic_resumed", "bindings_changed",
    "group_made", "group_set", "group_dropped", "schedule_put", "schedule_paused",
    "schedule_deleted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, for what it is there, and what it means."""

    name: str
    read: Callable[[str], Any]
    meaning: str
    default: Any = None
    # Where it may be given: views of reads, "stream" for streams only, "write".
    views: tuple[str, ...] = VIEWS
    writing: bool = False
    shown: str = ""


def _text(value: str) -> str:
    return value


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("a whole number from 1 on")
    return int(value)


def _from_zero(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("a whole number from 0 on")
    return int(value)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in words:
            raise ValueError(" or ".join(words))
        return value

    return read


def _offsets(value: str) -> Any:
    if value in ("earliest", "latest"):
        return value
    try:
        offsets = json.loads(value)
    except json.JSONDecodeError:
        offsets = None
    if not isinstance(offsets, dict):
        raise ValueError(
            'earliest, latest, or JSON such as {"0": 12} (a log) or {"<shard>": 12} (changes)'
        )
    return offsets


def _length_s(value: str) -> float:
    """A length of time, in seconds."""
    try:
        return duration_us(value) / 1_000_000
    except InvalidArgument:
        raise ValueError("a length of time such as 30s or 5m") from None


def _keep_us(value: str) -> int:
    seconds = _length_s(value)
    if not 1 <= seconds <= 86_400:
        raise ValueError("a length of time from 1s to 1d")
    return int(seconds * 1_000_000)


def _address(value: str) -> str:
    """Looked at in the driver, before any task connects."""
    try:
        address = parse_address(value)
    except InvalidArgument:
        raise ValueError(
            "HOST:PORT, fasti://HOST:PORT or, with TLS, fasti+tls://HOST:PORT; several hosts with "
            "commas"
        ) from None
    if address.directory is not None:
        raise ValueError(
            "the address of a broker process (fasti serve): executors can't share an embedded one"
        )
    return value


def _some_of(*words: str) -> Callable[[str], tuple[str, ...]]:
    def read(value: str) -> tuple[str, ...]:
        names = _names(value)
        if not names or not set(names) <= set(words):
            raise ValueError(f"some of {', '.join(words)}")
        return names

    return read


def _moment(value: str) -> datetime:
    """Milliseconds since 1970, as Kafka's source has them, or ISO 8601 with a zone."""
    if value.lstrip("-").isdecimal():
        return datetime.fromtimestamp(int(value) / 1000, UTC)
    expected = "ISO 8601 with a zone, as 2026-11-16T09:00:00Z, or milliseconds since 1970"
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(expected) from None
    if moment.tzinfo is None:
        raise ValueError(expected)
    return moment


OPTIONS: tuple[Option, ...] = (
    Option("address", _address, "The broker: `127.0.0.1:7170`, or `fasti://host:port`, several with commas; `fasti+tls://` with TLS. By default `FASTI_ADDRESS`, or port 7170 of this machine.", _DEFAULT_ADDRESS, writing=True),
    Option("token", _text, "The token of a broker that asks for one. `FASTI_TOKEN` in the environment of driver and executors does as well.", None, writing=True),
    Option("tlsCa", _text, "A file with the certificate of the authority that signed the broker's, in PEM; on every executor under the same path. So does `FASTI_TLS_CA`.", None, writing=True),
    Option("tlsClientCert", _text, "A file with the client's own certificate and its key, in PEM, for a broker that asks for one; on every executor under the same path. So does `FASTI_TLS_CLIENT_CERT`.", None, writing=True),
    Option("timeout", _length_s, "How long a broker that is away is waited for before the job fails.", 60.0, writing=True, shown="60s"),
    Option("topic", _text, "The topic. For `changes` it may be left out: then all; in writes, where a column `topic` says it.", None, writing=True),
    Option("view", _one_of(*VIEWS), "What is read.", "messages"),
    Option("columns", _names, "The columns that are read, with commas; all by default. What is left out doesn't travel. Spark doesn't tell a source which columns a query needs.", None),
    Option("op", _some_of(*OPS), "Changes of these kinds only, with commas: `produced`, `acked` and so on.", None, ("changes",)),
    Option("payload", _flag, "Whether `changes` bring payloads.", False, ("changes",)),
    Option("includeHeaders", _flag, "Whether there is a column `headers`.", True),
    Option("state", _some_of(*STATES), "Messages in one of these states, with commas: `scheduled`, `ready`, `leased`, `dead`.", None, ("messages",)),
    Option("dueFrom", _moment, "Messages due then or later: ISO 8601 with a zone, or milliseconds since 1970.", None, ("messages",)),
    Option("dueTo", _moment, "Messages due before then.", None, ("messages",)),
    Option("key", _text, "The message, or the entries, with this key.", None, ("messages", "kv")),
    Option("owner", _text, "Messages of one owner; in writes, in whose name messages are put or changed.", None, ("messages",), writing=True),
    Option("startingOffsets", _offsets, "Where to begin: `earliest`, `latest`, or offsets as JSON.", "earliest", STREAMED),
    Option("endingOffsets", _offsets, "Where a batch read ends: `latest`, or offsets as JSON.", "latest", STREAMED),
    Option("startingTimestamp", _moment, "Where to begin, by time; instead of `startingOffsets`.", None, STREAMED),
    Option("endingTimestamp", _moment, "Where a batch read ends, by time: before what happened then or later; instead of `endingOffsets`.", None, STREAMED),
    Option("maxOffsetsPerTrigger", _count, "At most about so many rows in one micro-batch.", None, STREAMED),
    Option("minPartitions", _count, "At least so many Spark partitions, where the read can be split; by default as many as Spark has cores.", None),
    Option("snapshotTimeout", _keep_us, "How long a query's snapshot is kept after its last use: 1 second to 1 day. By default 10 minutes, and 1 minute when all of it was read.", None, ("messages", "kv")),
    Option("failOnDataLoss", _flag, "Whether to fail when what comes next was dropped by retention; else it goes on with the earliest there is.", True, STREAMED),
    Option("prefix", _text, "Entries whose key begins so.", None, ("kv",)),
    Option("pushDownPredicate", _flag, "Whether the broker does a query's filters itself. Only for a `load()` that one filter of one query uses: Spark up to 4.3 keeps the plan that was made last for a `load()`, and reads by it whatever is asked next. The options above are safe.", False),
    Option("operation", _one_of(*OPERATIONS), "What a write does with each row.", "produce", (), writing=True),
    Option("onConflict", _one_of("fail", "skip"), "When a key is taken: nothing is written at all, or that row is left out. Of `produce` only.", "fail", (), writing=True),
    Option("sinkId", _text, "In streams: the name under which the broker remembers which batches were written; by default the query's id.", None, (), writing=True),
    Option("txnAppId", _text, "In batch writes, with `txnVersion`: what was written under this name and number before is not written again.", None, (), writing=True),
    Option("txnVersion", _from_zero, "A number that grows with each write of `txnAppId`; one that is not above the last changes nothing.", None, (), writing=True),
)  # fmt: skip
_BY_NAME = {option.name.lower(): option for option in OPTIONS}
# What Spark itself puts among the options.
_SPARKS = {"path", "checkpointlocation", "mergeschema", "queryname"}


class Options:
    """Checked options, by their names as attributes of a dict."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._values.items() if name != "token"}
        return f"Options({shown})"

    def given(self, name: str) -> bool:
        """Whether it has a value."""
        return self._values.get(name) is not None

    @classmethod
    def reading(cls, raw: Mapping[str, str], stream: bool = False) -> Options:
        """Of `spark.read` and `spark.readStream`. Raises `invalid_argument`."""
        values = _read(raw, [option for option in OPTIONS if option.views])
        view = values.get("view", "messages")
        for name in values:
            option = _BY_NAME[name.lower()]
            if view not in option.views:
                raise InvalidArgument(_not_for(option, view), field=name)
        if stream and view not in STREAMED:
            raise InvalidArgument(
                f"view {view!r} can't be streamed: only {' and '.join(STREAMED)}", field="view"
            )
        if view != "changes" and not values.get("topic"):
            raise InvalidArgument(
                f"the option 'topic' is missing: view {view!r} is of one topic", field="topic"
            )
        for end in ("starting", "ending"):
            if f"{end}Timestamp" in values and f"{end}Offsets" in values:
                raise InvalidArgument(
                    f"give {end}Offsets or {end}Timestamp, not both", field=f"{end}Timestamp"
                )
        if values.get("endingOffsets") == "earliest":
            raise InvalidArgument(
                "endingOffsets can't be earliest: expected latest, or offsets as JSON",
                field="endingOffsets",
            )
        return cls(_defaults(values, lambda option: view in option.views))

    @classmethod
    def writing(cls, raw: Mapping[str, str], stream: bool = False) -> Options:
        """Of `df.write` and `df.writeStream`. Raises `invalid_argument`."""
        values = _read(raw, [option for option in OPTIONS if option.writing])
        for name in values:
            if not _BY_NAME[name.lower()].writing:
                raise InvalidArgument(f"option {name!r} is for reading", field=name)
        if ("txnAppId" in values) != ("txnVersion" in values):
            raise InvalidArgument("txnAppId and txnVersion go together", field="txnAppId")
        if stream and "txnAppId" in values:
            raise InvalidArgument(
                "a stream counts its batches itself: leave txnAppId and txnVersion out, or give them "
                "to df.write in foreachBatch",
                field="txnAppId",
            )
        if not stream and "sinkId" in values:
            raise InvalidArgument(
                "sinkId is for streams: a batch write that may be run again has txnAppId and "
                "txnVersion",
                field="sinkId",
            )
        if "onConflict" in values and values.get("operation", "produce") != "produce":
            raise InvalidArgument(
                "onConflict is for operation 'produce'; what becomes of other operations' rows, "
                "fasti.spark.apply tells row by row",
                field="onConflict",
            )
        return cls(_defaults(values, lambda option: option.writing))


def _not_for(option: Option, view: str) -> str:
    """Why an option that there is can't be given here."""
    if not option.views:
        return f"option {option.name!r} is for writing"
    views = " and ".join(map(repr, option.views))
    return f"option {option.name!r} is not for view {view!r}, but for {views}"


def _defaults(values_read: dict[str, Any], applies: Callable[[Option], bool]) -> dict[str, Any]:
    values = {
        option.name: values_read.get(option.name, option.default)
        for option in OPTIONS
        if applies(option)
    }
    if "address" not in values_read:
        values["address"] = known_address()
    return values


def _read(raw: Mapping[str, str], options: Sequence[Option]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in raw.items():
        if name.lower() in _SPARKS:
            if name.lower() == "path" and text:
                raise InvalidArgument(
                    "a topic has no path: give it by option('topic', ...), and load and save nothing",
                    field="path",
                )
            continue
        option = _BY_NAME.get(name.lower())
        if option is None:
            raise InvalidArgument(_unknown(name, options), field=name)
        try:
            values[option.name] = option.read(str(text))
        except ValueError as error:
            excerpt = "" if option.name == "token" else f" {text!r}"
            raise InvalidArgument(
                f"option {option.name!r} can't be{excerpt}: expected {error}", field=option.name
            ) from None
    files = values.get("tlsCa"), values.get("tlsClientCert")
    if any(files):
        values["address"] = located(values.get("address", known_address()), *files)
    return values


def _unknown(name: str, options: Sequence[Option]) -> str:
    """With what was meant perhaps, or else all that can be given."""
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
    hint = (
        f": did you mean {_BY_NAME[near[0]].name!r}?"
        if near
        else f", but {', '.join(option.name for option in options)}"
    )
    return f"format 'fasti' has no option {name!r}{hint}"
