"""The consumer's protocol in virtual time: every order of replies, losses, reconnections, expiries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.client.machines.returns import Return
from fasti.errors import Fenced, IllegalTransition, NotFound, Overloaded
from fasti.protocol.problems import error_to_json
from tests.unit.client.machines.consumer_rig import LEASE_US, Rig

# Most go on as they would; between them a connection is lost, or some things happen and others don't.
ACTIONS = st.one_of(
    st.tuples(st.just("pump"), st.just(1)),
    st.tuples(st.just("pump"), st.just(1)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["ack", "ack", "nack", "release"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["poll", "arrive", "reply"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["lose", "refuse"]), st.just(1)),
    st.tuples(st.just("advance"), st.sampled_from([1_000, 30_000, 200_000, 1_100_000, LEASE_US])),
)


def play(rig: Rig, actions: list[tuple[str, int]]) -> None:
    for name, count in actions:
        if name == "advance":
            rig.advance(count)
        elif name == "refuse":
            rig.broker.refuse = True
        elif name in ("ack", "nack", "release"):
            for place in range(count):
                rig.finish(name, place)
        else:
            for _ in range(count):
                getattr(rig, name)()


@pytest.mark.parametrize("prefetch", [None, 1, 4])
@given(actions=st.lists(ACTIONS, min_size=20, max_size=80))
def test_whatever_comes_in_whatever_order(
    prefetch: int | None, actions: list[tuple[str, int]]
) -> None:
    """Nothing is delivered early, twice or without a lease, and everything is finished in the end."""
    rig = Rig(prefetch)
    play(rig, actions)
    rig.settle()
    # An ack is answered otherwise only if its lease had ended: then the message came again.
    for message_id in rig.stale:
        assert len([delivery for delivery in rig.delivered if delivery[0] == message_id]) > 1


def ready(rig: Rig) -> None:
    """Connected, with credit at the broker."""
    for _ in range(3):
        rig.pump()


def test_what_is_written_first() -> None:
    rig = Rig(4)
    assert rig.poll() == "connect"
    assert [header["op"] for header, _ in rig.inbox] == ["credit", "heartbeat"]
    assert rig.inbox[0][0]["count"] == 0
    # Nothing more before the heartbeat's reply.
    assert rig.poll() == "wait"
    rig._exchange()
    assert rig.poll() == "write"
    assert [header for header, _ in rig.inbox] == [{"op": "credit", "count": 4}]


def test_a_message_in_hand_learns_its_new_token() -> None:
    rig = Rig(4)
    ready(rig)
    assert rig.take()
    run, row = rig.in_hand[0]
    before = run.token_of(row)
    rig.lose()
    assert rig.poll() == "wait"
    rig.advance(2_000_000)
    ready(rig)
    assert run.token_of(row) > before
    rig.settle()
    assert not rig.stale


def test_pauses_between_tries_grow_and_end_with_the_first_success() -> None:
    rig = Rig(4)
    pauses = []
    for _ in range(3):
        assert rig.poll() == "connect"
        rig.lose()
        assert rig.poll() == "wait"
        pauses.append(rig.wait_s)
        rig.advance(int(rig.wait_s * 1e6) + 1)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[2]
    ready(rig)
    rig.lose()
    rig.poll()
    assert rig.wait_s == pytest.approx(pauses[0])


def test_a_lease_that_was_not_renewed_in_time_begins_a_new_session() -> None:
    rig = Rig(4)
    rig.broker.messages[1].due_us = rig.clock.at_us + 100_000
    ready(rig)
    rig.advance(LEASE_US)
    assert not rig.take()
    assert rig.poll() == "resume"
    rig.settle()


def test_leases_are_renewed_within_a_third_of_their_length() -> None:
    rig = Rig(4)
    ready(rig)
    rig.take()
    for _ in range(6):
        rig.advance(LEASE_US // 3)
        rig.pump()
    assert rig.broker.messages[0].until_us > rig.clock.at_us
    assert rig.machine.reconnections == 0


@pytest.mark.parametrize("error", [Fenced("another took the name"), NotFound("no topic")])
def test_the_end_fails_what_was_not_answered(error: Fenced | NotFound) -> None:
    rig = Rig(4)
    ready(rig)
    rig.take()
    run, _ = rig.in_hand[0]
    rig.finish("nack")
    failed = rig.machine.lose(error, rig.clock.now())
    assert failed is not None
    assert [(returned.op, returned.segments[0][0]) for returned in failed] == [("nack", run)]
    assert rig.poll() == "end"
    with pytest.raises(type(error)):
        rig.machine.holding.due_run(rig.clock.now())


def test_a_row_is_finished_once_and_a_refusal_changes_nothing() -> None:
    rig = Rig(4)
    ready(rig)
    rig.advance(50_000)
    assert rig.take()
    assert rig.take()
    (run, first), (other_run, second) = rig.in_hand
    assert run is other_run
    rig.finish("nack")
    for rows in ([first], [first, second]):
        with pytest.raises(IllegalTransition):
            rig.machine.give_back(Return("ack", None, [(run, np.array(rows))]))
    assert not run.finished[second]
    rig.settle()


def test_a_full_broker_gets_the_request_again_after_the_pause() -> None:
    rig = Rig(4)
    ready(rig)
    rig.take()
    rig.finish("nack")
    rig.broker.refuse = True
    assert rig.poll() == "write"
    rig._exchange()
    assert rig.poll() == "wait"
    assert 0 < rig.wait_s <= 0.001
    rig.advance(1_000)
    assert rig.poll() == "write"
    assert rig.inbox[0][0]["op"] == "nack"
    rig.settle()


def test_an_error_before_all_is_known_ends_the_session() -> None:
    rig = Rig(4)
    rig.poll()
    number = rig.inbox[1][0]["request"]
    error = {"kind": "error", "error": error_to_json(Overloaded("full"))}
    assert rig.machine.ends_session({**error, "request": number})
    assert rig.machine.ends_session({**error, "request": None})
    rig._exchange()
    assert not rig.machine.ends_session({**error, "request": number})


def test_a_message_in_hand_is_not_taken_for_an_earlier_delivery_that_goes_back() -> None:
    """It was released unopened, which was refused for now, and came again when its lease had ended. Then the
    connection is lost: user code has it, and it is not handed out once more.
    """
    rig = Rig(4, dues_us=[-5_000_000])
    rig.pump()
    rig.advance(LEASE_US // 3 + 1)
    rig.broker.refuse = True
    rig.pump()
    rig.advance(LEASE_US)
    rig.pump()
    assert rig.take()
    assert rig.broker.messages[0].delivery == 2
    rig.lose()
    rig.settle()
    assert len(rig.delivered) == 1
