"""What topics there are on several shards: told by shard 0, followed by the others."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.capsule import capture, restore
from fasti.core.catalogue import book as catalogue_book
from fasti.core.catalogue import deciding
from fasti.core.catalogue.commands import (
    CataloguePage,
    FollowCatalogue,
    ReadCatalogue,
    ReadCatalogueVersion,
    ReadIdle,
)
from fasti.core.cron import commands as cron
from fasti.core.cron.schedule import Schedule
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.layout import Layout, ShardPlace
from fasti.core.queries import ReadMemory, ReadTopics, SetMemory
from fasti.core.routing.commands import Bind, Routes, Unbind
from fasti.core.topic_settings import default_settings
from fasti.errors import CrossShard, InvalidArgument, Overloaded, WrongShard
from fasti.model import HOUR_US, Limits, Outcome, TopicSettings, partition_of
from fasti.storage.tools.losses import Losses
from fasti.storage.tools.mending import Mender
from tests.unit.core.test_ownership import NOW_US, Rig, names_on, produce


class Shards:
    """Some engines, and what carries pages from the first to the others."""

    def __init__(self, count: int = 3) -> None:
        self.all = [Rig(number, count) for number in range(count)]

    def follow(self) -> None:
        for rig in self.all[1:]:
            more = True
            while more:
                page = self.page(rig)
                assert rig.good(FollowCatalogue(page)).value == page.version
                more = page.more

    def page(self, rig: Rig) -> CataloguePage:
        """The next one for a shard, as it travels."""
        after = rig.good(ReadCatalogueVersion()).value
        page: CataloguePage = self.all[0].good(ReadCatalogue(after)).value
        return CataloguePage.from_dict(json.loads(json.dumps(page.to_dict())))

    def call(self, command: Any) -> Any:
        """A change of the catalogue, everywhere when this returns."""
        reply = self.all[0].good(command)
        self.follow()
        return reply

    def topics(self) -> list[dict[str, Any]]:
        """By shard: what each knows of its entries."""
        return [
            {
                topic.name: (
                    topic.catalogue_number,
                    topic.settings,
                    topic.paused,
                    tuple(topic.bindings),
                )
                for topic in rig.engine.state.topics.values()
                if topic.catalogue_number
            }
            for rig in self.all
        ]

    def check_equal(self) -> dict[str, Any]:
        first, *others = self.topics()
        assert all(other == first for other in others)
        return first


def test_every_change_of_a_topic_is_followed() -> None:
    shards = Shards()
    shards.call(co.CreateTopic("a", TopicSettings(partitions=3)))
    shards.call(co.CreateTopic("b", TopicSettings(partitions=3)))
    shards.call(co.ChangeTopic("a", TopicSettings(partitions=3, max_attempts=5)))
    shards.call(co.PauseTopic("a", True))
    shards.call(Bind("a", "x.>", "b"))
    known = shards.check_equal()
    assert known["a"][1].max_attempts == 5
    assert known["a"][2:] == (True, (("x.>", "b"),))
    shards.call(co.PauseTopic("a", False))
    shards.call(Unbind("a", "x.>", "b"))
    assert shards.check_equal()["a"][2:] == (False, ())
    shards.call(Bind("a", "x.>", "b"))
    shards.call(co.DeleteTopic("b"))
    assert shards.check_equal().keys() == {"a"}
    assert shards.check_equal()["a"][3] == ()


def test_a_topic_that_is_made_anew_has_nothing_of_the_old_one() -> None:
    shards = Shards()
    shards.call(co.CreateTopic("a", TopicSettings(partitions=3)))
    for rig in shards.all:
        rig.good(produce("a", 2))
    shards.all[0].good(co.DeleteTopic("a"))
    shards.all[0].good(co.CreateTopic("a", TopicSettings(partitions=3)))
    shards.follow()
    number = shards.check_equal()["a"][0]
    assert number > 1
    for rig in shards.all:
        assert sum(rig.good(co.Count("a")).states.values()) == 0


def test_pages_that_come_twice_or_late_change_nothing() -> None:
    shards = Shards(2)
    first, other = shards.all
    first.good(co.CreateTopic("a"))
    old = shards.page(other)
    other.good(FollowCatalogue(old))
    first.good(co.DeleteTopic("a"))
    first.good(co.CreateTopic("b"))
    new = shards.page(other)
    # Behind a gap: not taken.
    first.good(co.CreateTopic("c"))
    ahead = first.good(ReadCatalogue(new.version)).value
    assert other.good(FollowCatalogue(ahead)).value == old.version
    assert not other.frames
    assert other.good(FollowCatalogue(new)).value == new.version
    for page in (old, new):
        assert other.good(FollowCatalogue(page)).value == new.version
        assert not other.frames
    assert shards.topics()[1].keys() == {"b"}
    shards.follow()
    shards.check_equal()


def test_what_shards_make_for_themselves_is_no_part_of_it() -> None:
    shards = Shards(3)
    shards.call(co.CreateTopic("a"))
    for rig in shards.all:
        settings = TopicSettings(partitions=3)
        rig.good(co.CreateTopic("_replies", settings, is_own=True))
        rig.good(co.CreateTopic("_replies", settings, is_own=True))
    ids = [int(rig.good(produce("_replies", 1)).ids[0]) for rig in shards.all]
    assert len({partition_of(each) for each in ids}) == 3
    shards.call(co.CreateTopic("b"))
    assert shards.check_equal().keys() == {"a", "b"}
    # One's own may be deleted where it is.
    shards.all[2].good(co.DeleteTopic("_replies"))
    assert "_replies" in shards.all[1].engine.state.by_name


@pytest.mark.parametrize(
    "command",
    [
        co.CreateTopic("new"),
        co.CreateTopic("a"),
        co.ChangeTopic("a", TopicSettings(max_attempts=3)),
        co.DeleteTopic("a"),
        co.DeleteTopic("unknown"),
        co.PauseTopic("a", True),
        Bind("a", ">", "b"),
        Unbind("a", ">", "b"),
    ],
)
def test_topics_are_changed_on_shard_0_only(command: Any) -> None:
    shards = Shards()
    shards.call(co.CreateTopic("a"))
    shards.call(co.CreateTopic("b"))
    other = shards.all[1]
    reply = other.call(command)
    assert isinstance(reply.error, WrongShard)
    assert reply.error.details["shard"] == 0
    assert not other.frames
    page = shards.all[0].good(ReadCatalogue()).value
    assert isinstance(shards.all[0].call(FollowCatalogue(page)).error, InvalidArgument)
    assert isinstance(other.call(ReadCatalogue()).error, WrongShard)


def test_a_large_catalogue_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "PAGE_ENTRIES", 4)
    shards = Shards(2)
    first, other = shards.all
    for n in range(11):
        first.good(co.CreateTopic(f"t{n}", TopicSettings(partitions=2)))
    for n in range(5):
        first.good(Bind("t0", f"s{n}", "t10"))
    pages = 0
    more = True
    while more:
        page = shards.page(other)
        other.good(FollowCatalogue(page))
        pages, more = pages + 1, page.more
    assert pages == 3
    assert len(shards.check_equal()) == 11


def test_who_is_far_behind_is_told_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_book, "GONE_MAX", 3)
    shards = Shards(2)
    for n in range(8):
        shards.call(co.CreateTopic(f"t{n}"))
    for n in range(6):
        shards.all[0].good(co.DeleteTopic(f"t{n}"))
    assert shards.page(shards.all[1]).live == [7, 8]
    shards.follow()
    assert shards.check_equal().keys() == {"t6", "t7"}


def test_a_catalogue_that_is_behind_its_followers_deletes_nothing() -> None:
    shards, restored = Shards(2), Rig(0, 2)
    shards.call(co.CreateTopic("a"))
    error = restored.call(ReadCatalogue(1)).error
    assert isinstance(error, InvalidArgument)
    assert "backup" in str(error)


def test_it_is_kept_by_checkpoints_and_replayed() -> None:
    shards = Shards(2)
    frames: list[list[Any]] = [[], []]

    for command in (
        co.CreateTopic("a"),
        co.CreateTopic("b"),
        co.DeleteTopic("a"),
        co.PauseTopic("b", True),
    ):
        shards.all[0].good(command)
        frames[0] += shards.all[0].frames
        page = shards.page(shards.all[1])
        shards.all[1].good(FollowCatalogue(page))
        frames[1] += shards.all[1].frames
    for number, rig in enumerate(shards.all):
        replayed = Engine(64 << 20, 1000, place=ShardPlace(number, 2))
        for frame in frames[number]:
            replayed.replay(frame.sequence, frame.events)
        kept = capture(rig.engine.state)
        assert capture(replayed.state).head == kept.head
        restored = Engine(64 << 20, 1000, place=ShardPlace(number, 2))
        restore(restored.state, kept)
        assert capture(restored.state).head == kept.head
        assert list(restored.state.catalogue.topics) == list(rig.engine.state.catalogue.topics)
        # Read by a tool, which doesn't know the shard's place, it is the same.
        alone = Engine(64 << 20, 1000)
        restore(alone.state, kept)
        assert capture(alone.state).head == kept.head


def test_the_only_shard_has_no_catalogue() -> None:
    rig = Rig(0, 1)
    rig.good(co.CreateTopic("a"))
    assert [type(event).__name__ for frame in rig.frames for event in frame.events] == [
        "TopicCreated"
    ]
    kept = capture(rig.engine.state).head
    assert "catalogue" not in kept
    assert "catalogue" not in kept["topics"][0]
    assert rig.good(ReadCatalogueVersion()).value == 0


def test_followers_take_more_topics_than_their_limit() -> None:
    """Shard 0 has judged that already: a shard that can't follow would be left behind for ever."""
    first, other = Rig(0, 2), Rig(1, 2, topics_max=1)
    first.good(co.CreateTopic("a"))
    first.good(co.CreateTopic("b"))
    other.good(FollowCatalogue(first.good(ReadCatalogue()).value))
    assert len(other.good(ReadTopics()).value) == 2


def test_pages_that_are_none() -> None:
    for told in ({}, {"after": 0}, CataloguePage(0, 1).to_dict() | {"entries": [{"number": 1}]}):
        with pytest.raises(InvalidArgument):
            CataloguePage.from_dict(told)


def test_a_shard_whose_journal_has_a_gap_is_told_everything_again() -> None:
    shards = Shards(2)
    first, other = shards.all
    frames: list[Any] = []
    for name in ("a", "b", "c"):
        first.good(co.CreateTopic(name, TopicSettings(partitions=2)))
        other.good(FollowCatalogue(shards.page(other)))
        frames += other.frames
    repaired = Rig(1, 2)
    anything: Any = None
    mender = Mender(repaired.engine, anything, (1, 2), 0, Losses(), {})
    # The page with `b` is lost.
    for frame in (frames[0], frames[2]):
        for event in frame.events:
            mender.apply(event, frame.sequence, None)
    shards.all[1] = repaired
    assert shards.topics()[1].keys() == {"a", "c"}
    shards.follow()
    assert shards.check_equal().keys() == {"a", "b", "c"}


# Idle topics


def test_no_shard_deletes_an_idle_topic_that_another_may_use() -> None:
    shards = Shards(2)
    shards.call(co.CreateTopic("inbox", TopicSettings(partitions=2, idle_age_us=HOUR_US)))
    number = shards.check_equal()["inbox"][0]
    first, other = shards.all
    assert first.good(ReadIdle()).value == []
    used_us = other.now_us = first.now_us = NOW_US + HOUR_US // 2
    other.good(produce("inbox", 1))
    for rig in shards.all:
        rig.now_us = NOW_US + HOUR_US + 1_000_000
    (idle,) = first.good(ReadIdle()).value
    assert (idle.number, idle.name) == (number, "inbox")
    assert idle.since_us < NOW_US + 1_000_000
    assert other.good(ReadIdle()).value == []
    assert first.good(ReadIdle(after=number)).value == []
    other.now_us = used_us + HOUR_US + 1_000_000
    assert [each.since_us for each in other.good(ReadIdle()).value] == [used_us + 1000]
    # Who waits uses it.
    other.good(co.Lease("inbox", 1, "worker", 10))
    assert other.good(ReadIdle()).value == []
    for rig in shards.all:
        assert "inbox" in rig.engine.state.by_name
    shards.call(co.DeleteTopic("inbox"))
    assert first.good(ReadIdle()).value == []


def test_a_shard_deletes_its_own_idle_topics() -> None:
    rig = Rig(1, 2)
    settings = TopicSettings(partitions=2, idle_age_us=HOUR_US)
    rig.good(co.CreateTopic("_replies", settings, is_own=True))
    rig.now_us += 2 * HOUR_US
    rig.call()
    assert "_replies" not in rig.engine.state.by_name


# Bindings and copies


def test_a_copy_that_would_cross_shards_is_refused_when_it_is_bound() -> None:
    shards = Shards(3)
    for name, settings in {
        "source": TopicSettings(partitions=3),
        "alike": TopicSettings(partitions=3),
        "one": TopicSettings(partitions=1),
        "elsewhere": TopicSettings(partitions=3, home="x"),
        "log": TopicSettings(kind="log", partitions=3),
    }.items():
        shards.call(co.CreateTopic(name, settings))
    for target in ("one", "elsewhere", "log"):
        error = shards.all[0].call(Bind("source", ">", target)).error
        assert isinstance(error, CrossShard), target
        assert "home, partitions and width" in str(error)
    shards.call(Bind("source", ">", "alike"))


def test_copies_stay_on_the_shard_of_their_message() -> None:
    shards = Shards(3)
    shards.call(co.CreateTopic("source", TopicSettings(partitions=6)))
    shards.call(co.CreateTopic("copy", TopicSettings(partitions=3)))
    shards.call(Bind("source", ">", "copy"))
    rig = shards.all[1]
    layout = layout_of(rig, "source")
    mine: list[str | None] = [*names_on(layout, 1), None, None]
    command = produce("source", mine)
    command.routes = Routes(
        rig.engine.state.by_name["source"].bindings_version, [("copy", np.arange(len(mine)))]
    )
    assert (rig.good(command).status == Outcome.OK).all()
    copies = rig.good(co.List("copy")).ids
    assert len(copies) == len(mine)
    target = layout_of(rig, "copy")
    assert {target.shard_of(partition_of(int(each))) for each in copies} == {1}


def layout_of(rig: Rig, topic: str) -> Layout:
    return Layout.of(rig.engine.state.by_name[topic].settings, rig.place.count)


# Schedules


def test_a_schedule_is_on_a_shard_of_its_target() -> None:
    shards = Shards(3)
    shards.call(co.CreateTopic("cron", TopicSettings(kind="cron")))
    shards.call(co.CreateTopic("everywhere", TopicSettings(partitions=3)))
    shards.call(co.CreateTopic("somewhere", TopicSettings(partitions=1)))
    for rig in shards.all:
        definition = Schedule(target="everywhere", every_us=HOUR_US).to_json()
        rig.good(cron.PutSchedules("cron", [("s", definition)]))
        fired = rig.good(cron.RunSchedule("cron", "s", Rows.of([b"x"])))
        layout = layout_of(rig, "everywhere")
        assert layout.shard_of(partition_of(int(fired.ids[0]))) == rig.place.number
    answers = []
    for rig in shards.all:
        definition = Schedule(target="somewhere", every_us=HOUR_US).to_json()
        answers.append(rig.call(cron.PutSchedules("cron", [("t", definition)])).error)
    assert [type(error) for error in answers].count(WrongShard) == 2
    assert answers.count(None) == 1


# Settings, memory


def test_a_topic_has_a_partition_for_each_shard_unless_it_is_told() -> None:
    assert default_settings({}, 4).partitions == 4
    assert default_settings({"kind": "kv"}, 4).partitions == 4
    assert default_settings({"kind": "priority"}, 4).partitions == 1
    assert default_settings({"kind": "log"}, 4).partitions == 1
    assert default_settings({"kind": "cron"}, 4).partitions == 1
    assert default_settings({}, 1) == TopicSettings()


def test_memory_is_lent() -> None:
    rig = Rig(0, 2)
    rig.good(co.CreateTopic("a", TopicSettings(partitions=2)))
    rig.good(produce("a", 10))
    use = rig.good(ReadMemory()).value
    assert 0 < use.used_bytes < use.budget_bytes == use.limit_bytes == 64 << 20
    assert rig.good(SetMemory(use.used_bytes)).value.budget_bytes == use.used_bytes
    assert not rig.frames
    refused = rig.call(produce("a", 10)).error
    assert isinstance(refused, Overloaded)
    assert rig.good(co.Count("a")).states["ready"] == 10
    assert rig.good(SetMemory(1 << 40)).value.budget_bytes == 64 << 20
    rig.good(produce("a", 10))
    assert isinstance(rig.call(SetMemory(-1)).error, InvalidArgument)
    assert Engine(1 << 20, 10, Limits()).memory.limit_bytes == 1 << 20
