"""Outcomes as runs: whatever the columns, they come back; what is alike takes no room."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.core.replies import Reply
from fasti.errors import InvalidArgument
from fasti.model import Outcome
from fasti.protocol.outcomes import decode, encode

ROWS = st.lists(
    st.tuples(
        st.sampled_from([int(outcome) for outcome in Outcome]),
        st.integers(0, 12) | st.integers(0, 2**62),
        st.integers(0, 3) | st.integers(0, 2**32 - 1),
    ),
    max_size=40,
)


def reply_of(rows: list[tuple[int, int, int]]) -> Reply:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Reply(columns[:, 0].astype(np.uint8), columns[:, 1].copy(), columns[:, 2].copy())


@given(ROWS)
def test_columns_come_back(rows: list[tuple[int, int, int]]) -> None:
    reply = reply_of(rows)
    found = decode(json.loads(json.dumps(encode(reply))))
    assert found.status.tolist() == reply.status.tolist()
    assert found.ids.tolist() == reply.ids.tolist()
    assert found.versions.tolist() == reply.versions.tolist()
    assert not found.sent_before


def test_a_batch_that_went_well_is_three_runs() -> None:
    count = 5_000
    reply = Reply(
        np.zeros(count, dtype=np.uint8), np.arange(7, 7 + count), np.ones(count, dtype=np.int64)
    )
    assert encode(reply) == {
        "status": [["ok", 5000]],
        "ids": [[7, 5000]],
        "versions": [[1, 5000]],
    }


def test_who_holds_a_message_until_when_is_told_of_its_row() -> None:
    reply = reply_of([(0, 1, 1), (int(Outcome.LEASED), 2, 1)])
    reply.at_us = np.array([0, 99])
    reply.by = {1: "worker-1"}
    reply.sent_before = True
    found = decode(json.loads(json.dumps(encode(reply))))
    assert found.at_us == {1: 99}
    assert found.by == {1: "worker-1"}
    assert found.sent_before


def test_ids_that_the_asker_has_are_left_out() -> None:
    reply = reply_of([(0, 5, 1), (0, 9, 1)])
    told = encode(reply, with_ids=False)
    assert "ids" not in told
    assert decode(told, reply.ids).ids.tolist() == [5, 9]


@pytest.mark.parametrize(
    "nonsense",
    [{}, {"status": [["what", 1]], "ids": [], "versions": []}, {"status": 3, "ids": []}],
)
def test_nonsense_is_refused(nonsense: dict) -> None:
    with pytest.raises(InvalidArgument):
        decode(nonsense)
