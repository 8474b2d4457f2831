"""A drain as its command sees it: shard by shard, and every way in which it doesn't come to its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fasti.cli.emptying import Emptying, Move
from fasti.errors import FastiError, TimedOut, Unavailable


def view(
    *leaders: str | None,
    b1: str = "alive",
    weight: float = 0,
    other: float = 1,
    follows: bool = False,
) -> dict[str, Any]:
    """Brokers b1, which is drained, and b2; shards with these leaders."""
    return {
        "members": [
            {"name": "b1", "state": b1, "weight": weight},
            {"name": "b2", "state": "alive", "weight": other},
        ],
        "shards": [
            {"shard": number, "leader": leader, "epoch": 7, "standbys": ["b1"] if follows else []}
            for number, leader in enumerate(leaders)
        ],
    }


class Views:
    """One after the other; the last one stays."""

    def __init__(self, *views: dict[str, Any] | FastiError) -> None:
        self._views = list(views)

    def __call__(self) -> dict[str, Any]:
        found = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        if isinstance(found, FastiError):
            raise found
        return found


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes a second of a clock that nobody waits for."""
    times = iter(range(1_000_000))
    clock = SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None)
    monkeypatch.setattr("fasti.cli.emptying.time", clock)


def test_shard_by_shard_until_it_is_empty() -> None:
    seen = Emptying("b1")
    views = Views(
        view("b1", "b2", "b1", weight=1),
        view("b1", "b2", None),
        Unavailable("nobody answers for a moment"),
        view("b1", "b2", "b2"),
        view("b2", "b2", "b2", follows=True),
        view("b2", "b2", "b2"),
    )
    moves = list(seen.watch(views, 60))
    assert moves == seen.done == [Move(2, "b2", 7), Move(0, "b2", 7)]


def test_one_that_was_empty() -> None:
    assert list(Emptying("b1").watch(Views(view("b2")), 60)) == []


@pytest.mark.parametrize(
    ("views", "kind", "words"),
    [
        ((view("b1"), view("b1", b1="gone")), Unavailable, "b1 is gone before it was empty"),
        ((view("b1"), view("b1", weight=1)), FastiError, "started again, or undrained"),
        ((view("b1", other=0),), FastiError, "no other broker is left that can lead"),
        ((view("b1", "b1", "b2"),), TimedOut, "within 20 s; shards that are left: 0, 1"),
        ((Unavailable("nobody"),), Unavailable, "nobody"),
    ],
)
def test_ends_that_are_not_good(views: Any, kind: type[FastiError], words: str) -> None:
    with pytest.raises(kind, match=words):
        list(Emptying("b1").watch(Views(*views), 20))
