"""Consumers that fall silent, as the engine decides: by hand, at its own moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.delivery.silence import UNOPENED, again
from fasti.core.events import Unopened
from fasti.core.replies import Deliver, SessionDoubted
from fasti.model import Outcome
from tests.unit.core.delivery.test_turns import NOW_US, Shard, ids

LEASE_US = 1_000_000


def shard_with(rows: int, **settings: Any) -> Shard:
    shard = Shard(lookahead_us=0, lease_us=LEASE_US, max_attempts=1, **settings)
    if rows:
        shard.produce([NOW_US] * rows)
    return shard


def unheard(shard: Shard, session: int, after_token: int = 0, hold_back: bool = False) -> int:
    silent: int = shard.do(co.Unheard("t", session, f"w{session}", after_token, hold_back)).value
    return silent


def run_out(shard: Shard) -> list[Deliver]:
    shard.now_us += LEASE_US
    return shard.settle()


def states(shard: Shard) -> dict[str, int]:
    return dict(shard.do(co.Count("t")).states)


def test_what_a_silent_consumer_has_does_not_die_of_it() -> None:
    shard = shard_with(500)
    for session in range(1, 21):
        shard.wait(session)
    shard.settle()
    assert states(shard)["leased"] == 500
    for session in range(1, 21):
        unheard(shard, session, hold_back=True)
    assert run_out(shard) == []
    assert (states(shard)["ready"], states(shard)["dead"]) == (500, 0)
    # A living one gets all of them, as if it were the first time.
    delivered = shard.wait(21)
    while shard.last.more:
        delivered += shard.step()
    assert sorted(ids(delivered)) == list(range(1, 501))
    assert {int(n) for each in delivered for n in each.attempts} == {1}
    assert {word for each in delivered for word in each.reasons} == {UNOPENED}  # type: ignore[union-attr]
    assert shard.engine.state.by_name["t"].unopened == 500


def test_it_is_told_how_often_in_a_row_nobody_opened_a_message() -> None:
    shard = shard_with(1)
    for session in (1, 2, 3):
        shard.wait(session)
        assert unheard(shard, session, hold_back=True) == 1
        run_out(shard)
        shard.do(co.Detach(session))
    told = [e.reason for f in shard.frames for e in f.events if isinstance(e, Unopened)]
    assert told == [UNOPENED, f"{UNOPENED} (2 times in a row)", f"{UNOPENED} (3 times in a row)"]
    assert again("the lease expired") == UNOPENED


@pytest.mark.parametrize("sign", ["heard", "heartbeat", "extend", "resume", "none"])
def test_any_sign_of_the_holder_makes_it_count(sign: str) -> None:
    shard = shard_with(1)
    (delivered,) = shard.wait(1)
    one = np.array([delivered.token])
    if sign == "heard":
        assert unheard(shard, 1) == 1
        shard.do(co.Heard("t", 1, "w1"))
    elif sign == "heartbeat":
        shard.do(co.Heartbeat("t", "w1"))
    elif sign == "extend":
        shard.do(co.Extend("t", delivered.ids, one, length_us=LEASE_US))
    elif sign == "resume":
        shard.do(co.Lease("t", 2, "w1", 0))
    if sign != "none":
        assert unheard(shard, 2 if sign == "resume" else 1) == 0
    run_out(shard)
    # Nobody spoke of silence, or there was a sign since: the last attempt is over.
    assert states(shard)["dead"] == 1


def test_what_was_written_before_the_last_frame_counts() -> None:
    shard = shard_with(1, partitions=1)
    (first,) = shard.wait(1, credit=1)
    shard.produce([NOW_US])
    (second,) = shard.wait(1, credit=1)
    assert unheard(shard, 1, after_token=first.token) == 1
    run_out(shard)
    assert (states(shard)["dead"], states(shard)["ready"]) == (1, 1)
    reply = shard.do(co.Get("t", co.Target(ids=second.ids)))
    assert reply.status.tolist() == [Outcome.OK]


def test_a_session_that_is_held_back_gets_nothing_until_it_is_heard() -> None:
    shard = shard_with(0)
    shard.wait(1, credit=10)
    unheard(shard, 1, hold_back=True)
    assert shard.produce([NOW_US] * 3) == []
    assert shard.wait(1, credit=10) == []
    # Another one does.
    assert len(ids(shard.wait(2, credit=1))) == 1
    assert len(ids(shard.step(co.Heard("t", 1, "w1")))) == 2


def test_who_lets_leases_run_out_gets_less_and_comes_last() -> None:
    shard = Shard(lookahead_us=0, lease_us=LEASE_US, max_attempts=0)
    shard.produce([NOW_US] * 8)
    assert len(ids(shard.wait(1, credit=1_000))) == 8
    for expected in (4, 2, 1, 1):
        assert len(ids(run_out(shard))) == expected
        assert [e.session for e in shard.last.effects if isinstance(e, SessionDoubted)] in ([], [1])
    # It holds one. Another session gets all the rest, and what comes.
    assert len(ids(shard.wait(2, credit=1_000))) == 7
    assert {each.session for each in shard.produce([NOW_US] * 5)} == {2}
    # With a message finished it is trusted as before.
    shard.do(co.Heard("t", 1, "w1", finished=True))
    shard.do(co.Detach(2))
    assert len(ids(shard.produce([NOW_US] * 5))) == 5


def test_a_name_is_taken_without_asking_for_messages() -> None:
    shard = shard_with(2)
    assert len(ids(shard.wait(1, credit=1))) == 1
    (again_,) = shard.step(co.Lease("t", 2, "w1", 0))
    assert (again_.session, again_.ids.tolist()) == (2, [1])
    assert shard.settle() == []


def test_a_session_asks_for_so_much_and_no_more() -> None:
    shard = shard_with(0)
    shard.wait(1, credit=1 << 20)
    shard.step(co.Lease("t", 1, "w1", 1))
    assert shard.last.replies[0].error.code == "invalid_argument"
