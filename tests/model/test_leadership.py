"""Leadership, searched breadth-first: every order of steps, faults and crashes within bounds.

The bounds are in `BOUNDS`: how many data packs, take-overs, faults (an answer lost, a message late, a
refusal that isn't true, a replica that lags), crashes, checkpoints and standbys a run has. `pytest -s`
prints how many states there were. Each run adds one thing to the smallest one that shows it; a wider
search is the long test's.
"""

import pytest

from tests.model.checker import Search, search
from tests.model.mutants import (
    AppendsAnew,
    BelievesRefusals,
    ClaimsWithItsOwnManifest,
    ForgetsItsChange,
    SeveralInFlight,
    SkipsWhatItMeets,
    SweepsEverything,
    TakesTrimmedForMoved,
    TrimsWithoutAClaim,
)
from tests.model.steps import Rules
from tests.model.world import Budget, World

BOUNDS = {
    "three packs, a crash": (2, Budget(packs=3, take_overs=2, faults=1, crashes=1)),
    "two faults": (2, Budget(packs=2, take_overs=2, faults=2, crashes=1)),
    "a third take-over": (2, Budget(packs=1, take_overs=3, faults=1, crashes=0)),
    "three brokers": (3, Budget(packs=1, take_overs=3, faults=0, crashes=0)),
    "a checkpoint": (2, Budget(packs=1, take_overs=2, faults=1, crashes=1, checkpoints=1)),
    "two checkpoints": (2, Budget(packs=0, take_overs=2, faults=1, crashes=0, checkpoints=2)),
    "a standby": (2, Budget(packs=1, take_overs=2, faults=0, crashes=0, checkpoints=1, follows=1)),
    "a handover": (2, Budget(packs=2, take_overs=2, faults=1, crashes=0, follows=1, yields=1)),
}
LONG = {
    "three faults": (2, Budget(packs=3, take_overs=2, faults=3, crashes=1)),
    "take-overs": (2, Budget(packs=2, take_overs=3, faults=1, crashes=1)),
    "three brokers": (3, Budget(packs=1, take_overs=3, faults=1, crashes=0)),
    "checkpoints": (2, Budget(packs=1, take_overs=2, faults=1, crashes=1, checkpoints=2)),
    "a checkpoint between packs": (
        2,
        Budget(packs=2, take_overs=2, faults=1, crashes=0, checkpoints=1),
    ),
    "a standby": (2, Budget(packs=1, take_overs=2, faults=1, crashes=0, checkpoints=1, follows=1)),
    "a handover": (
        2,
        Budget(packs=2, take_overs=2, faults=1, crashes=1, checkpoints=1, yields=1),
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_no_order_of_events_breaks_an_invariant(name: str) -> None:
    run(name, *BOUNDS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_nor_does_any_in_a_wider_search(name: str) -> None:
    run(name, *LONG[name])


def run(name: str, brokers: int, budget: Budget) -> None:
    result = search(budget, brokers=brokers)
    print(f"{name}: {result.states} states, {result.depth} steps deep")
    assert result.trace == (), "\n".join(result.trace)


def test_the_search_reaches_what_it_is_for() -> None:
    budget = Budget(packs=2, take_overs=2, faults=1, crashes=0)
    sights = search(budget, look=sights_of).sights
    sights += search(budget._replace(packs=0, faults=0, checkpoints=1), look=sights_of).sights
    assert set(sights) == {
        "two leaders at once",
        "an answer of each epoch",
        "moved",
        "trimmed",
        "late",
    }


def sights_of(world: World) -> list[str]:
    leaders = [broker for broker in world.brokers if broker.owner is not None]
    return [
        *(["two leaders at once"] if len(leaders) == 2 else []),
        *(["an answer of each epoch"] if len({a.epoch for a in world.acknowledged}) == 2 else []),
        *(["moved"] if world.moved else []),
        *(["trimmed"] if world.trimmed else []),
        *(["late"] if world.network else []),
    ]


SMALL = Budget(packs=2, take_overs=2, faults=1, crashes=0)
WITH_CHECKPOINT = Budget(packs=1, take_overs=2, faults=1, crashes=0, checkpoints=1)
WITH_TWO = WITH_CHECKPOINT._replace(checkpoints=2)
MUTANTS = {
    "several packs in flight": (Rules(writer=SeveralInFlight), SMALL, "not in the replay"),
    "refusals believed": (Rules(writer=BelievesRefusals), SMALL, "answered with `moved`"),
    "packs skipped": (Rules(writer=SkipsWhatItMeets), SMALL, ""),
    "a pack sent on behind others": (Rules(writer=AppendsAnew), SMALL, ""),
    "one nonce for two brokers": (Rules(nonce=lambda broker, life: 1), SMALL, ""),
    "trimmed taken for moved": (
        Rules(writer=TakesTrimmedForMoved), WITH_CHECKPOINT, "answered with `moved`",
    ),
    "an old manifest claimed": (Rules(writer=ClaimsWithItsOwnManifest), WITH_CHECKPOINT, ""),
    "trimmed without a claim": (Rules(owner=TrimsWithoutAClaim), WITH_CHECKPOINT, "trimmed to"),
    "others' blocks swept": (Rules(owner=SweepsEverything), WITH_CHECKPOINT, "blocks that are gone"),
    "a change forgotten": (Rules(owner=ForgetsItsChange), WITH_TWO, "blocks that are gone"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    rules, budget, fault = MUTANTS[name]
    result = search(budget, rules)
    print_trace(name, result)
    assert result.trace, f"{result.states} states, and nothing was found"
    assert fault in result.trace[-1]


def print_trace(name: str, result: Search) -> None:
    print(f"\n{name}: found after {result.states} states")
    for number, step in enumerate(result.trace, 1):
        print(f"  {number:2} {step}")
