"""Which copies of a stream are damaged, by what servers say and by what they have."""

from __future__ import annotations

from itertools import groupby
from random import Random

from fasti.cluster.damage import (
    Damage,
    DamageBook,
    Run,
    confirmed,
    damage_in_rolls,
    damage_in_states,
    missing_runs,
    union_of,
)
from fasti.cluster.server_checks import problems_of
from fasti.cluster.server_reports import ReplicaState, ServerReport, usual_monitors

STREAM = "c-j-0"


def state(first: int, last: int, lost: int = 0, leads: bool = False) -> ReplicaState:
    return ReplicaState(first, last, last - first + 1 - lost, lost, leads)


def reports(**states: ReplicaState) -> list[ServerReport]:
    return [
        ServerReport(name, f"id-{name}", "2.15.1", True, {STREAM: each})
        for name, each in states.items()
    ]


def accused(now: list[ServerReport], before: list[ServerReport], is_whole: bool = True) -> set[str]:
    return {damage.server for damage in damage_in_states(now, before, {STREAM: is_whole})}


def test_a_copy_with_gaps_is_damaged_at_once_where_there_are_none() -> None:
    now = reports(a=state(1, 400, leads=True), b=state(1, 400, lost=43), c=state(1, 399))
    assert accused(now, []) == {"b"}
    (damage,) = damage_in_states(now, [], {STREAM: True})
    expected = f"the copy of {STREAM} on NATS server b has lost 43 of 400 messages"
    assert str(damage) == expected
    # Blocks go one by one.
    assert accused(now, [], is_whole=False) == set()
    assert damage_in_states(now, [], {"other": True}) == []


def test_a_copy_that_stays_behind_is_damaged_and_one_that_comes_nearer_is_not() -> None:
    before = reports(a=state(1, 420, leads=True), b=state(1, 19), c=state(1, 19))
    now = reports(a=state(1, 500, leads=True), b=state(1, 19), c=state(1, 200))
    assert accused(now, before) == {"b"}
    assert accused(now, []) == set()
    # What came since the last look may be on its way.
    idle = reports(a=state(1, 420, leads=True), b=state(1, 420), c=state(1, 420))
    assert accused(reports(a=state(1, 421, leads=True), b=state(1, 420)), idle) == set()
    # One that was not there before has had no time.
    back = reports(a=state(1, 420, leads=True), b=state(1, 420), c=state(1, 19))
    assert accused(back, idle[:2]) == set()


def test_a_copy_without_its_beginning_is_damaged_and_one_slow_to_trim_is_not() -> None:
    lost = reports(a=state(9, 420, leads=True), b=state(1, 420), c=state(1, 420))
    assert accused(lost, []) == set()
    assert accused(lost, lost) == {"a"}
    slow = reports(a=state(9, 420, leads=True), b=state(9, 420), c=state(1, 420))
    assert accused(slow, slow) == set()


def test_a_server_that_does_not_answer_is_not_damaged() -> None:
    before = reports(a=state(1, 9, leads=True), b=state(1, 9), c=state(1, 9))
    assert accused(reports(a=state(1, 20, leads=True)), before) == set()
    assert accused([], before) == set()


def runs_of(numbers: set[int]) -> list[Run]:
    rows = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    groups = [[number for _, number in group] for _, group in rows]
    return [(group[0], group[-1]) for group in groups]


def test_runs_are_compared_as_sets_are() -> None:
    random = Random(5)
    for _ in range(300):
        all_, own, other = (
            {random.randrange(1, 30) for _ in range(random.randrange(30))} for _ in range(3)
        )
        assert runs_of(all_ - own) == missing_runs(runs_of(all_), runs_of(own))
        assert runs_of(all_ | own | other) == union_of(map(runs_of, (all_, own, other)))
        found = confirmed({"a": runs_of(all_)}, {"a": runs_of(own)})
        assert found.get("a", 0) == len(all_ & own)


def lacks(
    rolls: dict[str, list[Run]], is_whole: bool, **states: ReplicaState
) -> dict[str, list[Run]]:
    return damage_in_rolls(rolls, is_whole, states)


def test_what_a_copy_lacks_is_found_among_the_others() -> None:
    rolls = {"a": [(1, 10)], "b": [(1, 3), (5, 10)], "c": [(1, 10)]}
    assert lacks(rolls, is_whole=False) == {"b": [(4, 4)]}
    # A gap that all copies have is one only where there must be none: it has spread.
    everywhere = {"a": [(1, 3), (5, 10)], "b": [(1, 3), (5, 10)]}
    assert lacks(everywhere, is_whole=False) == {}
    assert lacks(everywhere, is_whole=True) == {"a": [(4, 4)], "b": [(4, 4)]}
    assert lacks({"a": [], "b": []}, is_whole=True) == {}


def test_a_copy_that_is_behind_lacks_nothing_and_accuses_nobody() -> None:
    # It has not heard yet that 1 to 4 were removed, nor of 11 and 12.
    rolls = {"a": [(5, 12)], "b": [(5, 12)], "c": [(1, 10)]}
    states = {"a": state(5, 12, leads=True), "b": state(5, 12), "c": state(1, 10)}
    for is_whole in (False, True):
        assert lacks(rolls, is_whole, **states) == {}
    # What it says that it has, it must have; also at its end.
    rolls["c"] = [(1, 6), (8, 9)]
    assert lacks(rolls, False, **states) == {"c": [(7, 7), (10, 10)]}
    rolls["b"] = []
    assert lacks(rolls, False, **states)["b"] == [(5, 12)]


def test_the_book_holds_a_stream_until_it_is_found_whole() -> None:
    book = DamageBook()
    assert not book.is_held([STREAM])
    book.doubt(STREAM)
    assert (book.doubts, book.is_held([STREAM]), book.is_held(["other"])) == ([STREAM], True, False)
    book.note_roll(STREAM, {"b": 43})
    assert book.damages == [Damage("b", STREAM, "has lost 43 messages")]
    assert book.damaged_servers(STREAM) == {"b"}
    # A server that says that all is well has not been read.
    book.note_states([])
    assert book.is_held(["x", STREAM])
    book.note_roll(STREAM, {})
    assert not book.is_held([STREAM])
    book.note_states([Damage("b", STREAM, "has lost 1 of 2 messages")])
    assert book.is_held([STREAM])
    book.note_states([])
    assert book.damages == []
    # What the leader before has found counts as long as it is told.
    told = Damage("c", STREAM, "has lost 1 message")
    book.hear("b2", [told], until=10.0)
    assert (book.all_known(9.0), book.damages) == ([told], [])
    assert book.is_held([STREAM])
    assert book.all_known(11.0) == []
    assert not book.is_held([STREAM])


def test_servers_that_may_lose_messages_are_named_with_what_to_write() -> None:
    good = ServerReport("n0", "i", "2.15.1", True, {})
    assert problems_of([good, good._replace(version="2.14.0-RC.2")]) == []
    lazy, none, old = (
        good._replace(name="n1", sync_always=False),
        good._replace(name="n2", sync_always=None),
        good._replace(name="n3", version="2.9.25"),
    )
    texts = list(map(str, problems_of([good, lazy, none, old])))
    assert len(texts) == 2
    assert "n1" in texts[0]
    assert "`sync_interval: always`" in texts[0]
    assert "n3 has version 2.9.25: 2.14 or newer is needed" in texts[1]
    # One that keeps nothing harms nobody, unless nobody keeps anything.
    (alone,) = problems_of([none])
    assert "n2 has no JetStream" in str(alone)


def test_monitoring_ports_are_looked_for_beside_the_servers() -> None:
    urls = ["nats://10.0.0.1:4222", "tls://[::1]:4222", "nats://10.0.0.1:4223"]
    assert usual_monitors(urls) == ["http://10.0.0.1:8222", "http://[::1]:8222"]
