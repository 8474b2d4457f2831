"""What the settings of a topic may be. The SDK checks them too, and needs nothing else of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fasti.core.traits import KINDS
from fasti.errors import InvalidArgument
from fasti.model import DAY_US, DUE_MAX_US, PARTITIONS_MAX, Limits, TopicSettings

# Kinds that have a partition on each shard unless they are told otherwise.
_SPREAD = ("timeline", "kv")
FIXED = ("kind", "partitions", "age_step_us", "home", "width")
_HOME_BYTES_MAX = 64
# Settings that some kinds don't have.
_NOT_OF_ALL = frozenset[str]().union(*(traits.settings for traits in KINDS.values()))


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
        (
            len(settings.home.encode()) <= _HOME_BYTES_MAX and settings.home.isprintable(),
            "home",
            _HOME_BYTES_MAX,
            f"a home is at most {_HOME_BYTES_MAX} printable bytes",
        ),
        (0 <= settings.width <= PARTITIONS_MAX, "width", PARTITIONS_MAX, "0 (all) to 4096 shards"),
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


def default_settings(given: Mapping[str, Any], shards: int) -> TopicSettings:
    """What a new topic has where these settings say nothing, among so many shards.

    A timeline or key-value topic is spread over all of them; where the order over the whole topic is what
    it is for, as in priority topics and logs, it has one partition.
    """
    kind = given.get("kind", TopicSettings().kind)
    return TopicSettings(partitions=shards if kind in _SPREAD else 1)
