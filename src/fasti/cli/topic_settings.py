"""A topic's settings as options, made from the fields of `TopicSettings` and `RetryPolicy`.

A field `lease_us` is the option `--lease` and takes a length of time, `--segment-bytes` a size;
those of the retry policy begin with `retry`. What each one means stands in the table below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from fasti.cli import moments, output
from fasti.cli.options import size
from fasti.cli.signatures import Command, option, with_options
from fasti.model import RetryPolicy, TopicSettings
from fasti.settings.values import Size

_FIXED = ("kind", "partitions", "age_step", "home", "width")
_SIZE = Size(least=0)
_PANEL = "Settings of the topic"
_MEANINGS = {
    "kind": "What the topic is: timeline, priority, cron, log or kv.",
    "partitions": "Units of order and parallelism; never changed later.",
    "lease": "How long a consumer has a message before others get it.",
    "hold": "How long a consumer may have it in all, however often its lease is renewed.",
    "max_attempts": "Deliveries before a message is dead.",
    "retry_base": "The pause after the first failed attempt.",
    "retry_factor": "How much longer each pause is than the one before; 1 for equal ones.",
    "retry_limit": "The longest pause.",
    "retry_jitter": "The share of a pause, 0 to 1, that is spread at random.",
    "lookahead": "How long before they are due messages are sent to the consumer's side.",
    "outcome_age": "How long it is remembered what became of finished messages.",
    "outcome_count": "Of how many finished messages that is remembered.",
    "producer_age": "How long the receipts of a silent producer are kept.",
    "stage_age": "How long staged messages wait for being published.",
    "age_step": "Priority: after so long a message counts one step more urgent; 0 is never.",
    "segment_age": "Log: rows older than this go, by whole segments; 0 keeps them.",
    "segment_bytes": "Log: a segment ends at so many bytes.",
    "retained_bytes": "Log: the oldest segments go when a partition has more; 0 is no bound.",
    "home": "On several shards: topics with the same word, partitions and width lie alike.",
    "width": "On several shards: over how many of them it is spread; 0 is all.",
    "relay": "Keep nothing here: only pass on to the bound topics.",
    "idle_age": "Deleted when it was not used for so long; 0 is never.",
}


@dataclass(frozen=True, slots=True)
class TopicOption:
    """The option for one field of a topic's settings."""

    name: str
    field: str
    default: Any
    in_retry: bool = False

    @property
    def is_length(self) -> bool:
        """Whether it is a length of time."""
        return self.field.endswith("_us")

    @property
    def is_size(self) -> bool:
        """Whether it is a number of bytes."""
        return self.field.endswith("_bytes")

    def shown(self, value: Any) -> str:
        """For people."""
        if self.is_length:
            return moments.shown_length(value)
        if self.is_size:
            return _SIZE.show(value)
        return output.number(value) if isinstance(value, int) else str(value)

    def parameter(self) -> inspect.Parameter:
        """For typer; not given is None, so that only what was given is sent."""
        meaning = f"{_MEANINGS[self.name]} Default: {self.shown(self.default)}."
        name = "--" + self.name.replace("_", "-")
        how: dict[str, Any] = {"rich_help_panel": _PANEL, "show_default": False}
        if self.is_length:
            how |= {"parser": moments.length_us, "metavar": "TIME"}
        declared = (
            size(meaning, name, **how) if self.is_size else typer.Option(name, help=meaning, **how)
        )
        return option(self.name, Annotated[type(self.default) | None, declared])

    def of(self, settings: TopicSettings) -> Any:
        """Its value in those settings."""
        return getattr(settings.retry if self.in_retry else settings, self.field)


def _all() -> list[TopicOption]:
    settings: list[TopicOption] = []
    defaults = TopicSettings()
    for field in fields(TopicSettings):
        if field.name == "retry":
            for part in fields(RetryPolicy):
                name = "retry_" + part.name.removesuffix("_us")
                settings.append(
                    TopicOption(name, part.name, getattr(defaults.retry, part.name), True)
                )
        else:
            value = getattr(defaults, field.name)
            settings.append(TopicOption(field.name.removesuffix("_us"), field.name, value))
    return settings


SETTINGS = _all()
CHANGEABLE = [setting for setting in SETTINGS if setting.name not in _FIXED]


def with_settings(settings: list[TopicOption]) -> Callable[[Command], Command]:
    """Gives `command(..., given)` an option for each; `given` has the fields that were given."""

    def fields_of(**given: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for setting in settings:
            if given[setting.name] is not None:
                place = values.setdefault("retry", {}) if setting.in_retry else values
                place[setting.field] = given[setting.name]
        return values

    return with_options("given", [setting.parameter() for setting in settings], fields_of)
