"""Every kind says what it is like, once."""

from __future__ import annotations

import pytest

from fasti.core.engine import Engine
from fasti.core.topic_settings import check_settings
from fasti.core.traits import KINDS, hint
from fasti.errors import InvalidArgument
from fasti.model import KINDS as NAMES
from fasti.model import Limits, TopicSettings


def test_every_kind_has_traits_and_a_class() -> None:
    assert set(KINDS) == set(NAMES)
    kinds = Engine().kinds
    assert {kind.name: kind.traits for kind in kinds} == KINDS


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("age_step_us", 1),
        ("segment_age_us", 1),
        ("retained_bytes", 1),
        ("idle_age_us", 1),
        ("relay", True),
    ],
)
def test_a_setting_is_refused_unless_the_kind_has_it(kind: str, name: str, value: int) -> None:
    settings = TopicSettings(kind=kind, **{name: value})
    if name in KINDS[kind].settings:
        check_settings(settings, Limits())
        return
    with pytest.raises(InvalidArgument, match=f"topics have the setting {name}"):
        check_settings(settings, Limits())


def test_a_hint_ends_a_refusal() -> None:
    assert hint("cron", "pause") == ": pause its schedules"
    assert hint("timeline", "pause") == ""
