"""The life of a message, as one table.

A verb takes a message from one state to another; a pair that the table doesn't have is illegal.
`advance` looks a whole batch up at once, raises on the first illegal pair and changes nothing.
The drawing in the docs is made from this table by `draw`, so the two can't disagree.

`READY` is missing on purpose: it is `SCHEDULED` whose due time has come, and nobody records it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every
from fasti.errors import IllegalTransition
from fasti.model import State


class Verb(IntEnum):
    """What can happen to a message."""

    PRODUCE = 0
    STAGE = 1
    PUBLISH = 2
    DROP = 3
    UPDATE = 4
    MOVE = 5
    REPLACE = 6
    CANCEL = 7
    LEASE = 8
    EXTEND = 9
    RESUME = 10
    RELEASE = 11
    NACK = 12
    EXPIRE = 13
    ACK = 14
    REJECT = 15
    EXHAUST = 16
    REDRIVE = 17
    PURGE = 18
    LAPSE = 19


TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.NONE, Verb.PRODUCE): State.SCHEDULED,
    (State.NONE, Verb.STAGE): State.STAGED,
    (State.STAGED, Verb.PUBLISH): State.SCHEDULED,
    (State.STAGED, Verb.DROP): State.NONE,
    (State.SCHEDULED, Verb.UPDATE): State.SCHEDULED,
    (State.SCHEDULED, Verb.MOVE): State.SCHEDULED,
    (State.SCHEDULED, Verb.REPLACE): State.SCHEDULED,
    (State.SCHEDULED, Verb.CANCEL): State.CANCELLED,
    (State.SCHEDULED, Verb.LAPSE): State.DEAD,
    (State.SCHEDULED, Verb.LEASE): State.LEASED,
    (State.LEASED, Verb.EXTEND): State.LEASED,
    (State.LEASED, Verb.RESUME): State.LEASED,
    (State.LEASED, Verb.RELEASE): State.SCHEDULED,
    (State.LEASED, Verb.NACK): State.SCHEDULED,
    (State.LEASED, Verb.EXPIRE): State.SCHEDULED,
    (State.LEASED, Verb.ACK): State.DONE,
    (State.LEASED, Verb.REJECT): State.DEAD,
    (State.LEASED, Verb.EXHAUST): State.DEAD,
    (State.LEASED, Verb.LAPSE): State.DEAD,
    (State.DEAD, Verb.REDRIVE): State.SCHEDULED,
    (State.DEAD, Verb.PURGE): State.NONE,
}

# From which state to which, by the number of the state.
_EDGES = {(int(source), verb): (source, to) for (source, verb), to in TRANSITIONS.items()}
_ILLEGAL = 255
_NEXT = np.full((len(Verb), 8), _ILLEGAL, dtype=np.uint8)
for (_state, _verb), _next_state in TRANSITIONS.items():
    _NEXT[_verb, _state] = _next_state


def advance(states: NDArray[np.uint8], verb: Verb) -> NDArray[np.uint8]:
    """The states that `verb` leads to. Raises `IllegalTransition` if one has no way there."""
    reached = _NEXT[verb].take(states)
    if len(reached) and int(reached.max()) == _ILLEGAL:
        first = int(np.argmax(reached == _ILLEGAL))
        state = State(int(states[first]))
        raise IllegalTransition(f"a message that is {state.name.lower()} can't {verb.name.lower()}")
    return reached


def advance_all(states: NDArray[np.uint8], verb: Verb) -> tuple[State, State]:
    """From which state to which, for rows that are all in one: the rows of an event are."""
    code = int(states[0])
    edge = _EDGES.get((code, verb))
    if edge is None or (len(states) > 1 and not every(states == code)):
        advance(states, verb)
        raise IllegalTransition("the rows of one event are not all in one state")
    return edge


def draw() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2"]
    ends = {State.DONE, State.CANCELLED}
    grouped: dict[tuple[State, State], list[str]] = {}
    for (source, verb), target in TRANSITIONS.items():
        grouped.setdefault((source, target), []).append(verb.name.lower())
    for (source, target), verbs in grouped.items():
        names = ["[*]" if s is State.NONE else s.name.lower() for s in (source, target)]
        lines.append(f"    {names[0]} --> {names[1]} : {', '.join(verbs)}")
    lines += [f"    {state.name.lower()} --> [*]" for state in sorted(ends)]
    return "\n".join(lines)
