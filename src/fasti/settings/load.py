"""The broker's settings, gathered: flags before environment before file before defaults.

Everything that is wrong is found before anything is said: unknown keys, values that can't be read
(also where another source overrides them), settings that contradict each other, files that can't
be opened. Each fault names where it came from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fasti.config import Durability, GuardSettings, ShardSettings
from fasti.errors import FastiError, InvalidArgument
from fasti.model import Limits
from fasti.settings import cluster
from fasti.settings.declared import BROKER, BY_KEY, GUARD, LIMITS, SETTINGS, SHARD
from fasti.settings.peers import PeerMap, ProcessPlace, show_shards
from fasti.settings.values import Address

CONFIG_VARIABLE = "FASTI_CONFIG"


@dataclass(frozen=True, slots=True)
class WrongSetting:
    """One thing that is wrong, and where it was said."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All that a broker needs to start. `sources` says where each key's value came from."""

    data: Path
    clone: bool
    # None: what the directory has, or 1. With `peers`, as many as they have.
    shards: int | None
    processes: int
    # None: no other process has a shard of this broker.
    peers: PeerMap | None
    # The shards of this process; None for all of them.
    serve_shards: tuple[int, ...] | None
    # The cluster to join; None: the data directory has it all.
    cluster: str | None
    nats: tuple[str, ...] | None
    nats_replicas: int
    nats_journal_size: int
    # None: no bound but the servers'.
    nats_blocks_size: int | None
    max_skew: int
    nats_credentials: Path | None
    nats_ca: Path | None
    standbys: int
    nats_cert: Path | None
    nats_key: Path | None
    nats_system_credentials: Path | None
    nats_monitors: tuple[str, ...] | None
    nats_unchecked: bool
    nats_packs_size: int
    nats_wait: int
    broker_name: str | None
    weight: float
    listen: Address
    advertise: Address | None
    http: Address | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    credentials: Path | None
    insecure: bool
    stop_within_us: int
    metrics_series_max: int
    log_level: str
    log_format: str
    shard: ShardSettings
    guard: GuardSettings
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> ServeSettings:
    """The effective settings. `flags` are by key; None stands for one that was not given.

    Raises `invalid_argument` with every fault in its message and, as texts, in its details.
    """
    environment = os.environ if environment is None else environment
    faults: list[WrongSetting] = []
    values = {setting.key: setting.default for setting in SETTINGS}
    sources = dict.fromkeys(values, "default")
    for key, raw, where in _raw_values(flags or {}, environment, config, faults):
        try:
            values[key] = BY_KEY[key].kind.read(raw)
            sources[key] = where
        except ValueError as error:
            faults.append(WrongSetting(where, str(error)))
    faults += _contradictions(values, sources)
    shard = _shard(values, faults)
    if faults or shard is None:
        raise _refusal(faults)
    own = {key: values[key] for key in _OWN}
    if (place := own_place(values)) is not None:
        own |= {"shards": values["peers"].shards, "serve_shards": place.shards}
    guard = GuardSettings(**{setting.field: values[setting.key] for setting in GUARD})
    return ServeSettings(
        **own,
        stop_within_us=values["stop_within"],
        shard=shard,
        guard=guard,
        values=values,
        sources=sources,
    )


def own_place(values: Mapping[str, Any]) -> ProcessPlace | None:
    """Which process of `peers` these settings are for, if it is in there."""
    peers: PeerMap | None = values["peers"]
    if peers is None:
        return None
    if (shards := values["serve_shards"]) is not None:
        return next((place for place in peers.processes if place.shards == shards), None)
    return peers.place_at(values["advertise"], values["listen"])


_FILES = (
    *("tls_cert", "tls_key", "tls_client_ca", "credentials"),
    *("nats_credentials", "nats_ca", "nats_cert", "nats_key", "nats_system_credentials"),
)
_OWN = tuple(setting.key for setting in BROKER if setting.key != "stop_within")


def _raw_values(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    config: Path | None,
    faults: list[WrongSetting],
) -> Iterator[tuple[str, Any, str]]:
    """Everything that was given, the strongest source last."""
    path = config or (
        Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None
    )
    if path is not None:
        yield from _in_file(path, faults)
    for setting in SETTINGS:
        # An empty variable is one that was left blank in a template.
        if environment.get(setting.variable):
            yield setting.key, environment[setting.variable], f"variable {setting.variable}"
    for key, raw in flags.items():
        if raw is not None:
            yield key, raw, f"flag {BY_KEY[key].flag}"


def _in_file(path: Path, faults: list[WrongSetting]) -> Iterator[tuple[str, Any, str]]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        faults.append(WrongSetting(f"file {path}", error.strerror or str(error)))
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(WrongSetting(f"file {path}", f"not TOML: {error}"))
        return
    for key, raw in _flat(tables):
        if key in BY_KEY:
            yield key, raw, f"file {path}, {key}"
        else:
            close = difflib.get_close_matches(key, BY_KEY, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            faults.append(WrongSetting(f"file {path}", f"there is no setting {key!r}{hint}"))


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _contradictions(values: dict[str, Any], sources: dict[str, str]) -> Iterator[WrongSetting]:
    """What each value allows and all of them together don't."""
    if (values["tls_cert"] is None) != (values["tls_key"] is None):
        one, other = (
            ("tls_key", "tls_cert") if values["tls_cert"] is None else ("tls_cert", "tls_key")
        )
        yield WrongSetting(sources[one], f"{one} is given but {other} isn't: TLS needs both")
    if values["tls_client_ca"] is not None and values["tls_cert"] is None:
        yield WrongSetting(
            sources["tls_client_ca"],
            "tls_client_ca is given but tls_cert isn't: it is a part of TLS",
        )
    safe = values["tls_cert"] is not None and values["credentials"] is not None
    for key in ("listen", "http"):
        address: Address | None = values[key]
        if address is None or address.is_loopback or safe or values["insecure"]:
            continue
        yield WrongSetting(
            sources[key],
            f"{address} can be reached from other machines: give tls_cert, tls_key and credentials, "
            "or say insecure",
        )
    advertise: Address | None = values["advertise"]
    if advertise is not None and (advertise.port == 0 or advertise.near != advertise):
        yield WrongSetting(
            sources["advertise"], f"{advertise} is not an address that a client can connect to"
        )
    yield from _contradictions_of_processes(values, sources)
    for key, why in cluster.contradictions(values):
        yield WrongSetting(sources[key], why)
    for key in _FILES:
        if values[key] is not None and (reason := _unreadable(values[key])):
            yield WrongSetting(sources[key], f"{values[key]}: {reason}")
    if values["inbox_rows_max"] < values["limits.batch_rows_max"]:
        yield WrongSetting(
            _source_of(sources, "inbox_rows_max", "limits.batch_rows_max"),
            "inbox_rows_max must hold a whole batch: at least limits.batch_rows_max, "
            f"{values['limits.batch_rows_max']}",
        )
    if values["guard.request_max"] < 2 * values["limits.batch_max"]:
        yield WrongSetting(
            _source_of(sources, "guard.request_max", "limits.batch_max"),
            "guard.request_max must be at least twice limits.batch_max, "
            f"{values['limits.batch_max']} bytes",
        )
    if values["limits.lease_min"] > values["limits.lease_max"]:
        yield WrongSetting(
            _source_of(sources, "limits.lease_min", "limits.lease_max"),
            "limits.lease_min is more than limits.lease_max",
        )


def _contradictions_of_processes(
    values: dict[str, Any], sources: dict[str, str]
) -> Iterator[WrongSetting]:
    """Of who serves which shard, and where."""
    shards, processes, peers = values["shards"], values["processes"], values["peers"]
    if shards is not None and processes > shards:
        yield WrongSetting(
            _source_of(sources, "processes", "shards"),
            f"processes is {processes} and shards {shards}: a process needs a shard to serve",
        )
    if peers is not None:
        yield from _contradictions_of_peers(values, sources)
    elif values["serve_shards"] is not None:
        yield WrongSetting(
            sources["serve_shards"],
            "serve_shards is given but peers isn't: who has the other shards?",
        )
    elif processes > 1:
        yield from _contradictions_of_ports(values, sources)


def _contradictions_of_peers(
    values: dict[str, Any], sources: dict[str, str]
) -> Iterator[WrongSetting]:
    shards, processes, peers = values["shards"], values["processes"], values["peers"]
    if processes > 1:
        yield WrongSetting(
            _source_of(sources, "processes", "peers"),
            "peers are processes that are started one by one: give either them or processes",
        )
    if shards is not None and shards != peers.shards:
        yield WrongSetting(
            _source_of(sources, "shards", "peers"),
            f"peers have {peers.shards} shards, and shards is {shards}",
        )
    if own_place(values) is not None:
        return
    if (own := values["serve_shards"]) is not None:
        yield WrongSetting(
            sources["serve_shards"], f"no process of peers has just the shards {show_shards(own)}"
        )
    else:
        yield WrongSetting(
            sources["peers"],
            f"{values['advertise'] or values['listen']} is not in it: say by serve_shards which of "
            "these processes this one is",
        )


def _contradictions_of_ports(
    values: dict[str, Any], sources: dict[str, str]
) -> Iterator[WrongSetting]:
    """Of processes under a supervisor, each of which listens at the port after the one before."""
    more = values["processes"] - 1
    listen, advertise, http = values["listen"], values["advertise"], values["http"]
    for key in ("listen", "advertise"):
        address: Address | None = values[key]
        if address is not None and address.port + more > 65_535:
            yield WrongSetting(
                _source_of(sources, key, "processes"),
                f"{values['processes']} processes from {address} on need ports up to "
                f"{address.port + more}, and there are 65535",
            )
    if listen.near != listen and advertise is None:
        yield WrongSetting(
            sources["listen"],
            f"{listen} is no address that clients could be told for the other processes: give "
            "advertise",
        )
    if advertise is not None and listen.port == 0:
        yield WrongSetting(
            _source_of(sources, "listen", "advertise"),
            "with advertise and several processes the port of listen must be given: the ports that "
            "clients are told follow each other",
        )
    if http is not None and listen.port and listen.port <= http.port <= listen.port + more:
        yield WrongSetting(
            _source_of(sources, "http", "processes", "listen"),
            f"{values['processes']} processes listen at the ports {listen.port} to "
            f"{listen.port + more}, and http is {http}: choose another port for one of them",
        )


def _source_of(sources: dict[str, str], *keys: str) -> str:
    explicit = [sources[key] for key in keys if sources[key] != "default"]
    return " and ".join(explicit) or "default"


def _unreadable(path: Path) -> str:
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _shard(values: dict[str, Any], faults: list[WrongSetting]) -> ShardSettings | None:
    if faults:
        return None
    fields = {setting.field: values[setting.key] for setting in SHARD}
    fields["durability"] = Durability(fields["durability"])
    try:
        limits = Limits(**{setting.field: values[setting.key] for setting in LIMITS})
        return ShardSettings(**fields, limits=limits)
    except FastiError as error:
        faults.append(WrongSetting("settings", error.message))
        return None


def _refusal(faults: list[WrongSetting]) -> InvalidArgument:
    texts = [str(fault) for fault in faults]
    if len(texts) == 1:
        return InvalidArgument(texts[0], field="settings", details={"faults": texts})
    listed = "".join(f"\n  - {text}" for text in texts)
    return InvalidArgument(
        f"{len(texts)} settings are wrong:{listed}", field="settings", details={"faults": texts}
    )
