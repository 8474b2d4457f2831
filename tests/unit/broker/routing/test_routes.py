"""Which targets a subject fits, and that hostile patterns cost no more than others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker.placement import OneShard
from fasti.broker.routing.routes import RouteBook
from fasti.config import ShardSettings
from fasti.core.commands import Produce, Transaction
from fasti.core.keys import Rows
from fasti.core.queries import ReadTopics, TopicView
from fasti.core.replies import Done
from fasti.core.routing.commands import ReadBindings
from fasti.core.routing.matching import COPIES_PER_ROW_MAX, Matcher
from fasti.errors import InvalidArgument, NotFound, Overloaded
from fasti.model import Limits, TopicSettings
from tests.models.fanout import fits

WORDS = ("a", "b", "c", "orders", "eu")


def found(bindings: Sequence[tuple[str, str]], subject: str | None) -> list[str]:
    matcher = Matcher(1, bindings)
    return [matcher.targets[number] for number in matcher.match(subject)]


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("orders.eu.created", "orders.eu.created", True),
        ("orders.eu.created", "orders.eu", False),
        ("orders.*.created", "orders.eu.created", True),
        ("orders.*.created", "orders.created", False),
        ("orders.*.created", "orders.eu.west.created", False),
        ("orders.>", "orders.eu.created", True),
        ("orders.>", "orders.eu", True),
        ("orders.>", "orders", False),
        ("*", "orders", True),
        ("*", "orders.eu", False),
        ("*.>", "orders.eu", True),
        (">", "orders", True),
        (">", None, True),
        ("*", None, False),
    ],
)
def test_patterns_fit(pattern: str, subject: str | None, expected: bool) -> None:
    assert found([(pattern, "t")], subject) == (["t"] if expected else [])


def test_a_target_is_named_once_and_in_the_order_of_bindings() -> None:
    bindings = [("a.>", "late"), ("*.b", "early"), (">", "late"), ("a.b", "early")]
    assert found(bindings, "a.b") == ["late", "early"]


@pytest.mark.parametrize("seed", range(20))
def test_many_patterns_at_once_fit_as_each_by_itself(seed: int) -> None:
    rng = random.Random(seed)

    def words(count: int, of: Sequence[str]) -> str:
        return ".".join(rng.choice(of) for _ in range(count))

    bindings = []
    for number in range(60):
        pattern = words(rng.randint(1, 4), (*WORDS, "*", "*"))
        if rng.random() < 0.3:
            pattern += ".>"
        bindings.append((pattern, f"t{number % 20}"))
    for _ in range(200):
        subject = words(rng.randint(1, 5), WORDS)
        expected = {target for pattern, target in bindings if fits(pattern, subject)}
        assert set(found(bindings, subject)) == expected


def test_hostile_patterns_are_searched_once_each() -> None:
    """A thousand patterns of stars, and a subject of the greatest length."""
    bindings = [
        (".".join("*" if n >> bit & 1 else "a" for bit in range(10)), f"t{n}") for n in range(1000)
    ]
    bindings.append((".".join(["*"] * 127 + [">"]), "deep"))
    matcher = Matcher(1, bindings)
    assert len(matcher.match(".".join("a" * 10))) == 1000
    assert [matcher.targets[n] for n in matcher.match(".".join("a" * 128))] == ["deep"]


def test_the_memory_of_subjects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasti.core.routing.matching._REMEMBERED_MAX", 10)
    matcher = Matcher(1, [("a.*", "t")])
    for number in range(100):
        assert matcher.match(f"a.{number}") == (0,)
        assert len(matcher._known) <= 10


def test_rows_by_target() -> None:
    matcher = Matcher(7, [("a.*", "one"), (">", "all"), ("b", "two")])
    routes = matcher.routes(pa.array(["a.b", None, "b", "a.b", "c"]), 5)
    assert routes.version == 7
    assert {name: rows.tolist() for name, rows in routes.targets} == {
        "one": [0, 3],
        "all": [0, 1, 2, 3, 4],
        "two": [2],
    }
    without = matcher.routes(None, 3)
    assert {name: rows.tolist() for name, rows in without.targets} == {"all": [0, 1, 2]}


class OneTopic:
    """A shard with one topic, whose bindings a test changes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.settings = ShardSettings(limits=limits or Limits())
        self.version = 1
        self.bindings: list[tuple[str, str]] | None = [(">", "t")]
        self.refused = 0
        self.seen: list[Any] = []

    def ask(self, _: ReadTopics) -> Future[list[TopicView]]:
        topics: Future[list[TopicView]] = Future()
        topics.set_result([TopicView(1, "s", TopicSettings(), False, ((">", "t"),), 0, 0)])
        return topics

    def call(self, command: Any, lead: bool = False) -> Any:
        if isinstance(command, ReadBindings):
            if self.bindings is None:
                return Done(error=NotFound("there is no such topic"))
            return Done((self.version, self.bindings))
        self.seen.append((command.routes and command.routes.version, command.atomic))
        if command.routes is None or command.routes.version != self.version:
            details = {"bindings_of": "s", "bindings_version": self.version}
            return Done(error=Overloaded("changed", details=details))
        return Done()


def produce(rows: int = 1) -> Produce:
    return Produce("s", Rows.of([b""] * rows), atomic=True)


def test_a_command_that_was_routed_by_old_bindings_is_sent_again() -> None:
    shard = OneTopic()
    book = RouteBook(OneShard(shard))  # type: ignore[arg-type]
    assert book.call(produce()).error is None
    shard.version = 2
    assert book.call(produce()).error is None
    # Whole or nothing the second time as well.
    assert shard.seen == [(1, True), (1, True), (2, True)]
    shard.bindings = None
    book.refresh("s")
    unbound = produce()
    book.route(unbound)
    assert unbound.routes is None


def test_bindings_that_change_all_the_while_are_told() -> None:
    shard = OneTopic()
    book = RouteBook(OneShard(shard))  # type: ignore[arg-type]
    book.route(produce())
    shard.version += 1

    def refresh(topic: str) -> None:
        shard.version += 1

    book.refresh = refresh  # type: ignore[method-assign]
    assert isinstance(book.call(produce()).error, Overloaded)
    assert len(shard.seen) < 10


def test_the_bindings_of_a_deleted_target_are_looked_at_again() -> None:
    shard = OneTopic()
    shard.bindings = [(">", "t"), (">", "u")]
    book = RouteBook(OneShard(shard))  # type: ignore[arg-type]
    book.route(produce())
    shard.version, shard.bindings = 2, [(">", "u")]
    book.topic_gone("other")
    kept = produce()
    book.route(kept)
    book.topic_gone("t")
    fresh = produce()
    book.route(fresh)
    assert [kept.routes and kept.routes.version, fresh.routes and fresh.routes.version] == [1, 2]


def test_too_many_copies_are_refused_by_name() -> None:
    shard = OneTopic(Limits(batch_rows_max=10))
    shard.bindings = [(">", f"t{number}") for number in range(COPIES_PER_ROW_MAX + 1)]
    book = RouteBook(OneShard(shard))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="110 copies") as refusal:
        book.route(produce(10))
    assert refusal.value.details["limit"] == 100
    fewer = produce(9)
    book.route(Transaction([fewer]))
    assert fewer.routes is not None
    assert len(fewer.routes.targets) == COPIES_PER_ROW_MAX + 1
