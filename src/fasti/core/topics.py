"""Deciding topics: create, change, delete, and what their settings may be."""

from __future__ import annotations

from fasti.core import events as ev
from fasti.core.commands import ChangeTopic, CreateTopic, DeleteTopic, PauseTopic
from fasti.core.replies import Done
from fasti.core.routing.bindings import drop_target, is_target
from fasti.core.state import TOPIC_BYTES
from fasti.core.traits import KINDS, hint
from fasti.core.work import Work
from fasti.errors import InvalidArgument, Overloaded, TopicMismatch
from fasti.model import DAY_US, DUE_MAX_US, PARTITIONS_MAX, Limits, TopicSettings

FIXED = ("kind", "partitions", "age_step_us")
# Settings that some kinds don't have.
_NOT_OF_ALL = frozenset[str]().union(*(traits.settings for traits in KINDS.values()))


def create_topic(work: Work, command: CreateTopic) -> Done:
    """Makes a topic, or finds it made alike."""
    _check_name(command.name, work.limits)
    check_settings(command.settings, work.limits)
    known = work.state.by_name.get(command.name)
    if known is not None:
        differences = command.settings.differences(known.settings)
        if differences:
            told = ", ".join(
                f"{name} is {theirs!r}, not {mine!r}"
                for name, (mine, theirs) in sorted(differences.items())
            )
            raise TopicMismatch(
                f"topic {command.name!r} exists with other settings: {told}", differing=differences
            )
        return Done(known.number)
    if len(work.state.topics) >= work.limits.topics_max:
        raise Overloaded(f"there are {work.limits.topics_max} topics already")
    work.state.memory.require(TOPIC_BYTES + len(command.name), "one more topic")
    number = work.state.next_topic
    work.emit(ev.TopicCreated(work.now_us, number, command.name, command.settings.to_dict()))
    return Done(number)


def change_topic(work: Work, command: ChangeTopic) -> Done:
    """Gives a topic new settings."""
    topic = work.topic(command.name)
    check_settings(command.settings, work.limits)
    differences = command.settings.differences(topic.settings)
    for name in FIXED:
        if name in differences:
            raise InvalidArgument(f"a topic's {name} can't change", field=name)
    if "relay" in differences and command.settings.relay and is_target(work, topic):
        raise InvalidArgument("other topics are bound to it: it can't be a relay", field="relay")
    if differences:
        work.emit(ev.TopicChanged(work.now_us, topic.number, command.settings.to_dict()))
    return Done(topic.number)


def pause_topic(work: Work, command: PauseTopic) -> Done:
    """Stops handing out, or goes on; the value is whether that is new."""
    topic = work.topic(command.name)
    kind = topic.settings.kind
    if not topic.kind.traits.is_consumed:
        raise InvalidArgument(
            f"{topic.name!r} is a {kind} topic, which has no consumers{hint(kind, 'pause')}",
            field="topic",
        )
    if topic.paused == command.paused:
        return Done(False)
    work.emit(ev.TopicPaused(work.now_us, topic.number, int(command.paused)))
    return Done(True)


def delete_topic(work: Work, command: DeleteTopic) -> Done:
    """Removes a topic with all that it holds."""
    topic = work.topic(command.name)
    work.emit(ev.TopicDeleted(work.now_us, topic.number))
    drop_target(work, topic)
    return Done(topic.number)


def check_settings(settings: TopicSettings, limits: Limits) -> None:
    """Raises `invalid_argument` on the first setting that can't be."""
    retry = settings.retry
    for good, field, limit, message in (
        (settings.kind in KINDS, "kind", None, f"the kind must be one of {sorted(KINDS)}"),
        (
            1 <= settings.partitions <= PARTITIONS_MAX,
            "partitions",
            PARTITIONS_MAX,
            f"a topic has 1 to {PARTITIONS_MAX} partitions",
        ),
        (
            limits.lease_us_min <= settings.lease_us <= limits.lease_us_max,
            "lease_us",
            limits.lease_us_max,
            f"a lease must last {limits.lease_us_min} to {limits.lease_us_max} microseconds",
        ),
        (settings.hold_us >= settings.lease_us, "hold_us", None, "hold can't be below lease"),
        (settings.hold_us <= DUE_MAX_US, "hold_us", DUE_MAX_US, "hold can't be for ever"),
        (0 <= settings.max_attempts < 65_535, "max_attempts", 65_534, "0 (no end) to 65534"),
        (0 <= settings.lookahead_us <= 60_000_000, "lookahead_us", 60_000_000, "0 to a minute"),
        (settings.outcome_age_us >= 0, "outcome_age_us", None, "an age can't be negative"),
        (settings.outcome_count >= 0, "outcome_count", None, "a count can't be negative"),
        (settings.producer_age_us >= 0, "producer_age_us", None, "an age can't be negative"),
        (settings.stage_age_us > 0, "stage_age_us", None, "an age must be positive"),
        (0 <= settings.age_step_us <= DAY_US, "age_step_us", DAY_US, "0 (off) to a day"),
        (
            0 <= settings.segment_age_us <= DUE_MAX_US >> 1,
            "segment_age_us",
            DUE_MAX_US >> 1,
            "an age can't be negative, nor for ever: 0 keeps everything",
        ),
        (settings.segment_bytes >= 4096, "segment_bytes", None, "at least 4096 bytes"),
        (settings.retained_bytes >= 0, "retained_bytes", None, "a size can't be negative"),
        (
            0 <= settings.idle_age_us <= DUE_MAX_US >> 1,
            "idle_age_us",
            DUE_MAX_US >> 1,
            "an age can't be negative, nor for ever: 0 is never",
        ),
        (retry.base_us >= 0 and retry.limit_us >= 0, "retry", None, "delays can't be negative"),
        (
            max(retry.base_us, retry.limit_us) <= DUE_MAX_US,
            "retry",
            DUE_MAX_US,
            "delays can't be for ever",
        ),
        (1 <= retry.factor <= 1000, "retry", 1000, "the factor is 1 to 1000"),
        (0 <= retry.jitter <= 1, "retry", 1, "jitter is a share, 0 to 1"),
    ):
        if not good:
            raise InvalidArgument(message, field=field, limit=limit)
    for name in sorted(_NOT_OF_ALL - KINDS[settings.kind].settings):
        if getattr(settings, name):
            kinds = " and ".join(kind for kind, traits in KINDS.items() if name in traits.settings)
            raise InvalidArgument(f"only {kinds} topics have the setting {name}", field=name)


def _check_name(name: str, limits: Limits) -> None:
    if not 1 <= len(name.encode()) <= limits.name_bytes_max or not name.isprintable():
        raise InvalidArgument(
            f"a topic's name is 1 to {limits.name_bytes_max} printable bytes",
            field="topic",
            limit=limits.name_bytes_max,
        )
