"""What is asked of the catalogue, and what other shards are told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fasti.core.command import Command
from fasti.errors import InvalidArgument
from fasti.model import TopicSettings


@dataclass(slots=True)
class Entry:
    """A topic of the catalogue. Its number is never used again; its version is that of its last change."""

    number: int
    version: int
    name: str
    settings: TopicSettings
    paused: bool
    bindings: list[tuple[str, str]]


@dataclass(slots=True)
class CataloguePage:
    """What has changed after one version, up to another.

    `live` has the numbers of all topics there are, where it is not known any more which are gone;
    otherwise it is None and `gone` says it. With `more` the next page is to be read after `version`.
    """

    after: int
    version: int
    entries: list[Entry] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    live: list[int] | None = None
    more: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain values: what one process tells another."""
        return {
            "after": self.after,
            "version": self.version,
            "entries": [
                {
                    "number": entry.number,
                    "version": entry.version,
                    "name": entry.name,
                    "settings": entry.settings.to_dict(),
                    "paused": entry.paused,
                    "bindings": [list(pair) for pair in entry.bindings],
                }
                for entry in self.entries
            ],
            "gone": self.gone,
            "live": self.live,
            "more": self.more,
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> CataloguePage:
        """Back from `to_dict`. Raises `invalid_argument`."""
        try:
            entries = [
                Entry(
                    int(each["number"]),
                    int(each["version"]),
                    str(each["name"]),
                    TopicSettings.from_dict(each["settings"]),
                    bool(each["paused"]),
                    [(str(pattern), str(target)) for pattern, target in each["bindings"]],
                )
                for each in told["entries"]
            ]
            live = told["live"]
            return cls(
                int(told["after"]),
                int(told["version"]),
                entries,
                [int(number) for number in told["gone"]],
                None if live is None else [int(number) for number in live],
                bool(told["more"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"this is no page of a catalogue: {error!r}", field="page"
            ) from error


@dataclass(frozen=True, slots=True)
class ReadCatalogue(Command):
    """What has changed after a version: Done(value=`CataloguePage`). Of shard 0.

    To be submitted like a command: others are told only what is durable here.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class ReadCatalogueVersion(Command):
    """Up to which version this shard has the catalogue: Done(value=version)."""


@dataclass(slots=True)
class FollowCatalogue(Command):
    """Makes a page so, if it goes on where this shard is: Done(value=the version that it has then).

    A page that was carried out before, or one behind a gap, changes nothing.
    """

    page: CataloguePage


@dataclass(frozen=True, slots=True)
class ReadIdle(Command):
    """Topics of the catalogue that nobody has used here for as long as their `idle_age`.

    Done(value=list of `IdleTopic`), by number, at most a page above `after`.
    """

    after: int = 0


class IdleTopic(NamedTuple):
    """A topic of the catalogue, and since when it is idle on this shard."""

    number: int
    name: str
    since_us: int
