"""Topics are read a page a step, and together they are all."""

from __future__ import annotations

import pytest

from fasti.broker.topics import read_topics
from fasti.core import queries
from fasti.core.commands import CreateTopic, DeleteTopic
from fasti.model import TopicSettings
from tests.integration.shard_rig import SharedFiles, serving


def test_pages_of_topics_are_all_topics_in_the_order_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "TOPICS_PER_PAGE", 3)
    monkeypatch.setattr("fasti.broker.topics.TOPICS_PER_PAGE", 3)
    files = SharedFiles()
    kinds = ["kv", "timeline", "timeline", "kv", "log", "timeline", "kv"]
    with serving(files) as shard:
        for number, kind in enumerate(kinds):
            assert shard.call(CreateTopic(f"t{number}", TopicSettings(kind=kind)), 10).error is None
        shard.call(DeleteTopic("t2"), 10)
        wanted = ["t0", "t1", "t3", "t4", "t5", "t6"]
        assert [topic.name for topic in read_topics(shard)] == wanted
        assert [topic.name for topic in read_topics(shard, "kv")] == ["t0", "t3", "t6"]
        assert read_topics(shard, "cron") == []
        shard.checkpoint()
        shard.call(CreateTopic("a"), 10)
    with serving(files) as shard:
        # Read back from a checkpoint and the journal.
        assert [topic.name for topic in read_topics(shard)] == [*wanted, "a"]
