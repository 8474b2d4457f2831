"""The settings of a broker in a cluster: what kinds of values they take, and what contradicts itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ONLY_IN_CLUSTERS = (
    *("nats", "broker_name", "nats_credentials", "nats_ca", "nats_cert", "nats_key"),
    *("nats_system_credentials", "nats_monitors"),
)
_SCHEMES = ("nats", "tls", "ws", "wss")
_WEIGHT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Word:
    """A name that can be a part of a subject of NATS."""

    metavar: str = "NAME"

    def read(self, raw: Any) -> str:
        if not isinstance(raw, str) or not _WORD.fullmatch(raw):
            raise ValueError(
                f"{raw!r} is not a name of letters, digits, _ and -, at most 64 of them"
            )
        return raw

    def show(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Weight:
    """A broker's share of the shards, beside those of the others."""

    metavar: str = "NUMBER"

    def read(self, raw: Any) -> float:
        try:
            number = float("nan" if isinstance(raw, bool) else raw)
        except (TypeError, ValueError):
            number = float("nan")
        if not 0 <= number <= _WEIGHT_MAX:
            raise ValueError(f"{raw!r} is not a number from 0 to {_WEIGHT_MAX}")
        return number

    def show(self, value: Any) -> str:
        return f"{value:g}"


@dataclass(frozen=True, slots=True)
class NatsUrls:
    """Addresses of NATS servers, joined by commas: `nats://10.0.0.1:4222,nats://10.0.0.2:4222`."""

    metavar: str = "URL,..."

    def read(self, raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, str):
            raise ValueError(f"{raw!r} is not an address of NATS")
        return tuple(self._url(part.strip()) for part in raw.split(","))

    def _url(self, text: str) -> str:
        url = text if "://" in text else f"nats://{text}"
        parts = urlsplit(url)
        try:
            good = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError(
                f"{_hide(text)!r} is not an address of NATS like nats://127.0.0.1:4222"
            )
        return url

    def show(self, value: Any) -> str:
        return ",".join(value)

    def hide(self, value: Any) -> str:
        """To be read by anybody: without users and passwords."""
        return ",".join(map(_hide, value))


def _hide(url: str) -> str:
    scheme, mark, rest = url.rpartition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{mark}***@{host}" if at else url


@dataclass(frozen=True, slots=True)
class HttpUrls:
    """Addresses of monitoring ports, joined by commas: `http://10.0.0.1:8222,http://10.0.0.2:8222`."""

    metavar: str = "URL,..."

    def read(self, raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, str):
            raise ValueError(f"{raw!r} is not an address like http://127.0.0.1:8222")
        return tuple(self._url(part.strip()) for part in raw.split(","))

    def _url(self, text: str) -> str:
        parts = urlsplit(text)
        try:
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"{text!r} is not an address like http://127.0.0.1:8222")
        return text

    def show(self, value: Any) -> str:
        return ",".join(value)


def contradictions(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The key of what contradicts the rest, and why."""
    if values["cluster"] is None:
        for key in _ONLY_IN_CLUSTERS:
            if values[key] is not None:
                yield (
                    key,
                    f"{key} is given but cluster isn't: which cluster shall this broker join?",
                )
        return
    if values["nats"] is None:
        yield (
            "cluster",
            "cluster is given but nats isn't: a cluster is kept by NATS, name its servers",
        )
    if (values["nats_cert"] is None) != (values["nats_key"] is None):
        one, other = ("nats_cert", "nats_key") if values["nats_cert"] else ("nats_key", "nats_cert")
        yield one, f"{one} is given but {other} isn't: a certificate needs its key"
    for key, said in (
        ("processes", values["processes"] > 1),
        ("peers", values["peers"] is not None),
        ("serve_shards", values["serve_shards"] is not None),
        ("clone", values["clone"]),
    ):
        if said:
            yield key, f"{key} is for brokers on one data directory, and cluster for those on NATS"
    if values["shards"] == 1:
        yield "shards", "a cluster has at least 2 shards"
    advertise, listen = values["advertise"], values["listen"]
    if advertise is None and listen.near != listen:
        yield (
            "listen",
            f"{listen} is no address that clients of the cluster could be told: give advertise",
        )
