"""The table of the life cycle."""

import numpy as np
import pytest

from fasti.core import lifecycle
from fasti.core.lifecycle import TRANSITIONS, Verb, advance, advance_all
from fasti.errors import IllegalTransition
from fasti.model import State


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", Verb)
def test_only_the_edges_of_the_table_can_be_taken(state, verb):
    states = np.array([state, state], dtype=np.uint8)
    target = TRANSITIONS.get((state, verb))
    if target is None:
        with pytest.raises(IllegalTransition):
            advance(states, verb)
        with pytest.raises(IllegalTransition):
            advance_all(states, verb)
    else:
        assert advance(states, verb).tolist() == [target, target]
        assert advance_all(states, verb) == (state, target)
    assert states.tolist() == [state, state]


def test_rows_of_different_states_are_refused_together():
    mixed = np.array([State.SCHEDULED, State.LEASED], dtype=np.uint8)
    with pytest.raises(IllegalTransition):
        advance_all(mixed, Verb.CANCEL)


def test_every_state_is_drawn():
    drawing = lifecycle.draw()
    for state in State:
        if state is not State.NONE:
            assert state.name.lower() in drawing
    for verb in Verb:
        assert verb.name.lower() in drawing
