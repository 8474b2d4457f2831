"""How the values of settings are written: sizes, lengths of time, addresses, numbers, words.

A kind reads what stands in a flag, a variable (texts) or a TOML file (also numbers and booleans)
and raises `ValueError` with a reason that a person can act on. It also writes a value so that
reading it gives the same value again.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_SIZES = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SHOWN_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_LENGTHS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000}
_LENGTHS_US |= {"h": 3_600_000_000, "d": 86_400_000_000}
_SHOWN_LENGTHS = ("d", "h", "m", "s", "ms", "us")


class Address(NamedTuple):
    """Where to listen, or to connect to. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def near(self) -> Address:
        """How a process on the same machine reaches it: any address includes loopback."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return Address(anywhere.get(self.host, self.host), self.port)


class ValueKind(Protocol):
    """What values a setting takes."""

    @property
    def metavar(self) -> str:
        """What stands for a value in the help."""

    def read(self, raw: Any) -> Any:
        """The value; `ValueError` if it can't be."""

    def show(self, value: Any) -> str:
        """As people write it."""


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: a whole number, or with a unit."""

    least: int = 1
    metavar: str = "SIZE"

    def read(self, raw: Any) -> int:
        number, unit = _split(raw, "a size like 64MiB")
        factor = _SIZES.get(unit.lower())
        if factor is None:
            raise ValueError(f"{raw!r} is not a size: the units are B, KiB, MiB, GiB, TiB")
        return _whole(number * factor, self.least, raw)

    def show(self, value: Any) -> str:
        for unit, size in _SHOWN_SIZES:
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return str(value)


@dataclass(frozen=True, slots=True)
class Length:
    """A length of time, kept as a number of `unit` (us or ms). It always has a unit."""

    unit: str = "us"
    least: int = 1
    metavar: str = "TIME"

    def read(self, raw: Any) -> int:
        number, unit = _split(raw, "a length of time like 100ms")
        factor = _LENGTHS_US.get(unit.lower())
        if factor is None:
            raise ValueError(f"{raw!r} is not a length of time: the units are us, ms, s, m, h, d")
        return _whole(number * factor / _LENGTHS_US[self.unit], self.least, raw)

    def show(self, value: Any) -> str:
        value_us = value * _LENGTHS_US[self.unit]
        for unit in _SHOWN_LENGTHS:
            if value_us % _LENGTHS_US[unit] == 0:
                return f"{value_us // _LENGTHS_US[unit]}{unit}"
        raise AssertionError("the last unit divides everything")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number."""

    least: int = 1
    most: int = (1 << 31) - 1
    metavar: str = "NUMBER"

    def read(self, raw: Any) -> int:
        text = str(raw).replace("_", "").replace(",", "").strip()
        if isinstance(raw, bool) or not text.isdigit():
            raise ValueError(f"{raw!r} is not a whole number")
        if int(text) > self.most:
            raise ValueError(f"{raw!r} is more than {self.most:,}")
        return _whole(int(text), self.least, raw)

    def show(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.words)

    def read(self, raw: Any) -> str:
        if raw not in self.words:
            raise ValueError(f"{raw!r} is not one of {', '.join(self.words)}")
        return str(raw)

    def show(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """Yes or no."""

    metavar: str = ""

    def read(self, raw: Any) -> bool:
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise ValueError(f"{raw!r} is neither true nor false")

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path of a file or folder."""

    metavar: str = "PATH"

    def read(self, raw: Any) -> Path:
        if not isinstance(raw, (str, Path)) or not str(raw):
            raise ValueError(f"{raw!r} is not a path")
        return Path(raw).expanduser()

    def show(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen at; with `may_be_off`, also `off`, which is None."""

    may_be_off: bool = False

    @property
    def metavar(self) -> str:
        return "HOST:PORT|off" if self.may_be_off else "HOST:PORT"

    def read(self, raw: Any) -> Address | None:
        if self.may_be_off and (raw is False or raw == "off"):
            return None
        return read_address(raw)

    def show(self, value: Any) -> str:
        return "off" if value is None else str(value)


def read_address(raw: Any) -> Address:
    """`HOST:PORT`, with an IPv6 host in brackets."""
    host, colon, port = str(raw).rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{raw!r} is not an address: write HOST:PORT, like 127.0.0.1:7170")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{raw!r}: write an IPv6 address in brackets, like [::1]:7170")
    return Address(host, int(port))


def _split(raw: Any, example: str) -> tuple[float, str]:
    match = None if isinstance(raw, bool) else _NUMBER.fullmatch(str(raw))
    if match is None:
        raise ValueError(f"{raw!r} is not {example}")
    return float(match.group(1)), match.group(2)


def _whole(value: float, least: int, raw: Any) -> int:
    if value != int(value):
        raise ValueError(f"{raw!r} is not a whole number of its smallest unit")
    if value < least:
        raise ValueError(f"{raw!r} is less than {least:,}")
    return int(value)
