"""Topics as the SDK shows them, and settings as people give them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from fasti.client.durations import Duration, duration_us
from fasti.errors import InvalidArgument
from fasti.model import RetryPolicy, TopicSettings

if TYPE_CHECKING:
    from fasti.client.position import Position

_SETTINGS = {setting.name for setting in fields(TopicSettings)}
# `lease="30s"` stands for `lease_us=30_000_000`, and so on for every length of time.
_LENGTHS = {name.removesuffix("_us"): name for name in _SETTINGS if name.endswith("_us")}


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a nacked message waits before it is due again.

        client.create_topic("emails", retry=fasti.Backoff("1s", factor=2, limit="1h"))

    Attempt n waits `base · factor^(n − 1)`, at most `limit`, shortened by up to `jitter` of it.
    """

    base: Duration = "1s"
    factor: float = 2.0
    limit: Duration = "1h"
    jitter: float = 0.1

    def policy(self) -> RetryPolicy:
        """As the broker keeps it."""
        return RetryPolicy(
            duration_us(self.base, "base"),
            float(self.factor),
            duration_us(self.limit, "limit"),
            float(self.jitter),
        )


def check_consumable(topic: str, kind: str, group: str) -> None:
    """Refuses to consume what can't be, and says what to do instead. Raises `invalid_argument`."""
    if kind == "cron":
        raise InvalidArgument(
            f"{topic!r} is a cron topic: its schedules put messages into other topics, so consume "
            f"their targets; client.schedules({topic!r}) and `fasti schedules list {topic}` have them",
            field="topic",
        )
    if kind == "kv":
        raise InvalidArgument(
            f"{topic!r} is a kv topic, which has values and no messages: read them by "
            f"client.kv({topic!r}) or `fasti kv`, and follow changes by client.kv({topic!r}).watch()",
            field="topic",
        )
    if kind == "log" and not group:
        raise InvalidArgument(
            f"{topic!r} is a log: say which group consumes it (group=, --group), or read it "
            f"(client.reader({topic!r}), `fasti log read {topic}`)",
            field="group",
        )
    if kind != "log" and group:
        raise InvalidArgument(
            f"{topic!r} is a {kind} topic, whose consumers share its messages without a group: "
            "groups are for logs",
            field="group",
        )


class ScheduleReference(NamedTuple):
    """A schedule that emits into a topic: the cron topic, and its name there."""

    topic: str
    name: str


class BindingReference(NamedTuple):
    """A binding that leads to a topic: the topic that is bound, and by which pattern."""

    topic: str
    pattern: str


@dataclass(frozen=True, slots=True)
class References:
    """What points to a topic; of each the first hundred are named, and all are counted.

    When the topic is deleted, bindings to it end, and schedules wait for a topic of its name.
    """

    schedules: list[ScheduleReference]
    schedules_count: int
    bindings: list[BindingReference]
    bindings_count: int

    @classmethod
    def of_reply(cls, header: dict[str, Any]) -> References:
        """From the protocol's object."""
        return cls(
            [
                ScheduleReference(schedule["topic"], schedule["name"])
                for schedule in header["schedules"]
            ],
            int(header["schedules_count"]),
            [
                BindingReference(binding["topic"], binding["pattern"])
                for binding in header["bindings"]
            ],
            int(header["bindings_count"]),
        )

    def __bool__(self) -> bool:
        return bool(self.schedules_count or self.bindings_count)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was when it was asked for."""

    name: str
    settings: TopicSettings
    counts: dict[str, int] = field(default_factory=dict)
    # It hands nothing out until it is resumed.
    paused: bool = False
    # The place in the change feed up to which everything is counted, and nothing behind it.
    position: Position | None = field(default=None, compare=False)

    @classmethod
    def of_reply(cls, name: str, header: dict[str, Any]) -> Topic:
        """From the protocol's `settings`, `counts`, `shard` and `position`."""
        settings = TopicSettings.from_dict(header["settings"])
        at = None
        if "position" in header:
            from fasti.client.position import Position

            frame = header["position"]
            # On several shards it is a place in the feed of each.
            at = Position.of(frame) if isinstance(frame, dict) else Position(header["shard"], frame)
        paused = bool(header.get("paused", False))
        return cls(name, settings, dict(header.get("counts", {})), paused, at)


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings as the protocol has them. Raises `invalid_argument` on a name that is none."""
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if name in _LENGTHS:
            wire, value = _LENGTHS[name], duration_us(value, name)
        elif name == "retry":
            wire, value = name, _policy(value)
        elif name in _SETTINGS:
            wire = name
        else:
            known = sorted(_SETTINGS - set(_LENGTHS.values()) | set(_LENGTHS))
            raise InvalidArgument(
                f"a topic has no setting {name!r}, but {', '.join(known)}", field=name
            )
        if wire in settings:
            raise InvalidArgument(f"{name} is given twice", field=name)
        settings[wire] = value
    return settings


def _policy(value: Any) -> dict[str, Any]:
    if isinstance(value, Backoff):
        value = value.policy()
    if isinstance(value, RetryPolicy):
        return asdict(value)
    if isinstance(value, dict):
        return value
    raise InvalidArgument(f"retry must be a fasti.Backoff, not {value!r}", field="retry")
