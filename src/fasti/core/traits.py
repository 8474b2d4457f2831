"""What topics of each kind are like: all that is known of a kind without its engine.

The kind's class (core/kind.py) has it as `traits`, and says by its methods how the kind works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Traits:
    """One kind's."""

    name: str
    # Messages wait for their time, can be changed meanwhile, and are finished once.
    is_queue: bool = False
    # Messages are handed out to consumers; other topics can be bound to it.
    is_consumed: bool = False
    has_groups: bool = False
    has_priorities: bool = False
    has_schedules: bool = False
    # Settings that not every kind has.
    settings: frozenset[str] = frozenset()
    # What a sink can do with rows.
    sink_operations: tuple[str, ...] = ()
    # What to do instead of "produce", "pause" or "expires" where the kind can't.
    hints: dict[str, str] = field(default_factory=dict)


_QUEUE = ("produce", "update", "move", "cancel")

TIMELINE = Traits(
    "timeline",
    is_queue=True,
    is_consumed=True,
    settings=frozenset({"idle_age_us", "relay"}),
    sink_operations=_QUEUE,
)
PRIORITY = Traits(
    "priority",
    is_queue=True,
    is_consumed=True,
    has_priorities=True,
    settings=frozenset({"age_step_us", "idle_age_us", "relay"}),
    sink_operations=_QUEUE,
)
LOG = Traits(
    "log",
    is_consumed=True,
    has_groups=True,
    settings=frozenset({"segment_age_us", "retained_bytes", "relay"}),
    sink_operations=("produce", "append"),
    hints={"expires": "its rows go by retention"},
)
KV = Traits(
    "kv",
    sink_operations=("put",),
    hints={
        "produce": "client.kv(...).put and `fasti kv put` set its values",
        "expires": "put(ttl=) is for entries",
    },
)
CRON = Traits(
    "cron",
    has_schedules=True,
    hints={
        "produce": "its messages come from schedules, which client.schedules(...) and "
        "`fasti schedules put` make",
        "pause": "pause its schedules",
    },
)

KINDS = {traits.name: traits for traits in (TIMELINE, PRIORITY, LOG, KV, CRON)}


def kinds_with(trait: Callable[[Traits], bool]) -> list[str]:
    """The names of the kinds that have a trait, in the order in which people are told."""
    return [traits.name for traits in KINDS.values() if trait(traits)]


def hint(kind: str, what: str) -> str:
    """What to do instead, at the end of a refusal; empty if there is nothing to say."""
    text = KINDS[kind].hints.get(what)
    return f": {text}" if text else ""
