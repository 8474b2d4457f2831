"""Breadth-first search over all that can happen, within bounds; the shortest way to a fault is printed."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.model.invariants import Violation, check
from tests.model.steps import Rules, begin, steps
from tests.model.world import Budget, World


class Search(NamedTuple):
    """What came of a search. `trace`: the steps to the first fault, and the fault; empty if none."""

    states: int
    depth: int
    trace: tuple[str, ...]
    sights: Counter[str]


def search(
    budget: Budget,
    rules: Rules | None = None,
    *,
    brokers: int = 2,
    look: Callable[[World], list[str]] = lambda world: [],
    states_max: int = 2_000_000,
) -> Search:
    """All states within the budget. `look` names what a state shows, to prove that it was reached."""
    with no_collection():
        return explore(begin(budget, rules or Rules(), brokers), rules or Rules(), look, states_max)


@contextmanager
def no_collection() -> Iterator[None]:
    """States are kept and have no cycles: looking for garbage among them is time lost."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def explore(
    first: World, rules: Rules, look: Callable[[World], list[str]], states_max: int
) -> Search:
    came_from: dict[World, tuple[World | None, str]] = {first: (None, "")}
    waiting = deque([(first, 0)])
    sights: Counter[str] = Counter()
    depth = 0
    while waiting:
        world, depth = waiting.popleft()
        try:
            check(world)
            sights.update(look(world))
            for what, after in steps(world, rules):
                if after not in came_from:
                    came_from[after] = (world, what)
                    waiting.append((after, depth + 1))
        except (Violation, AssertionError) as error:
            trace = (*way(came_from, world), f"FAULT: {str(error).splitlines()[0]}")
            return Search(len(came_from), depth, trace, sights)
        assert len(came_from) <= states_max, "the bounds are too wide"
    return Search(len(came_from), depth, (), sights)


def way(came_from: dict[World, tuple[World | None, str]], world: World) -> list[str]:
    """The steps that led to a state."""
    names: list[str] = []
    at: World | None = world
    while at is not None:
        at, what = came_from[at]
        names.append(what)
    return names[-2::-1]
