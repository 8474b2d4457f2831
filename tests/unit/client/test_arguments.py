"""The types of arguments name what the code behind them takes, no more and no less."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_args

from fasti import model
from fasti.client.arguments import (
    ConnectionOptions,
    ConnectOptions,
    EmbeddedOptions,
    Fold,
    Gap,
    Kind,
    MessageState,
    Misfire,
    Overlap,
    ScheduleOptions,
    Status,
    TopicOptions,
    TopicSettingOptions,
)
from fasti.client.client import connect
from fasti.client.schedules import Schedules
from fasti.config import ShardSettings
from fasti.core.cron import schedule
from fasti.core.timeline.reads import STATE_WORDS


def test_the_words_are_those_of_the_engine() -> None:
    assert get_args(Status) == tuple(outcome.word for outcome in model.Outcome)
    assert get_args(Kind) == model.KINDS
    assert set(get_args(MessageState)) == set(STATE_WORDS.values())
    assert set(get_args(Gap)) == set(schedule.GAPS)
    assert set(get_args(Fold)) == set(schedule.FOLDS)
    assert set(get_args(Misfire)) == set(schedule.MISFIRES)
    assert set(get_args(Overlap)) == set(schedule.OVERLAPS)


def test_every_setting_of_a_topic_can_be_given() -> None:
    names = {each.name for each in fields(model.TopicSettings)} - {"kind"}
    lengths = {name.removesuffix("_us") for name in names if name.endswith("_us")}
    assert set(TopicOptions.__annotations__) == names | lengths
    fixed = set(TopicOptions.__annotations__) - set(TopicSettingOptions.__annotations__)
    assert fixed == {"partitions", "home", "width"}


def test_every_option_of_connect_can_be_given() -> None:
    shard = {each.name for each in fields(ShardSettings)} | {"settings", "clone", "shards"}
    assert set(EmbeddedOptions.__annotations__) == shard
    named = set(inspect.signature(connect).parameters) - {"address", "on_failure", "embedded"}
    assert set(ConnectOptions.__annotations__) == named | shard
    assert set(ConnectOptions.__annotations__) - set(ConnectionOptions.__annotations__) == {"owner"}


def test_the_options_of_a_schedule_are_those_of_put() -> None:
    parameters = set(inspect.signature(Schedules.put).parameters)
    assert set(ScheduleOptions.__annotations__) == parameters - {
        "self",
        "name",
        "target",
        "version",
    }
