"""Layouts are asked for once, forgotten when they may be others, and bounded in number."""

from __future__ import annotations

from fasti.client.shards import layouts
from fasti.client.shards.layouts import Layouts
from fasti.core.layout import Layout


def test_asked_once_until_it_is_forgotten_or_has_to_be_fresh() -> None:
    asked: list[str] = []
    now = [0.0]

    def ask(topic: str, stale: bool) -> Layout:
        asked.append(topic)
        return Layout(4, len(asked))

    known = Layouts(ask, lambda: now[0])
    assert known.of("a").partitions == known.of("a").partitions == 1
    now[0] += layouts.FRESH_S + 1
    assert known.of("a").partitions == 1
    assert known.of("a", fresh=True).partitions == 2
    known.forget("a")
    known.forget("never known")
    assert known.of("a").partitions == 3
    assert asked == ["a", "a", "a"]


def test_what_a_standby_tells_is_good_for_once() -> None:
    asked: list[bool] = []
    now = [0.0]

    def ask(topic: str, stale: bool) -> Layout:
        asked.append(stale)
        return Layout(4, len(asked))

    known = Layouts(ask, lambda: now[0])
    assert known.of("a", stale=True).partitions == 1
    assert known.of("a").partitions == 2
    now[0] += layouts.FRESH_S + 1
    assert known.of("a", fresh=True, stale=True).partitions == 2, "an old one will do"
    assert known.of("a", fresh=True).partitions == 3
    assert asked == [True, False, False]


def test_no_more_are_kept_than_a_bound() -> None:
    known = Layouts(lambda topic, stale: Layout(2), lambda: 0.0)
    for number in range(5_000):
        known.of(f"topic-{number}")
    assert len(known._known) == 4096
