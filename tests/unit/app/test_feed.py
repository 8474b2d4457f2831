"""Messages reach workers once each, and what nobody began goes back."""

from __future__ import annotations

import threading
from typing import Any

from tests.unit.app.fakes import FakeMessage, FakeSource

from fasti.app.feed import Feed, carry_out
from fasti.app.verdicts import ACK, GIVE_BACK, Verdict
from fasti.errors import Fenced


def feed_of(source: FakeSource, prefetch: int = 1000, failed: Any = None) -> Feed:
    return Feed(source, prefetch, failed or (lambda error: None))


def test_every_message_is_taken_once_by_many_threads() -> None:
    messages = [FakeMessage(id=number) for number in range(1000)]
    feed = feed_of(FakeSource(*messages))
    taken: list[list[int]] = [[] for _ in range(4)]
    rest = threading.Semaphore(0)

    def work(mine: list[int]) -> None:
        while (message := feed.take()) is not None:
            mine.append(message.id)
            feed.took(0.0)
            rest.release()

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for _ in messages:
        assert rest.acquire(timeout=30)
    feed.stop()
    for thread in threads:
        thread.join(30)
    assert sorted(number for mine in taken for number in mine) == list(range(1000))


def test_quick_handlers_take_more_at_a_time_and_slow_ones_one() -> None:
    source = FakeSource(*[FakeMessage() for _ in range(1000)])
    feed = feed_of(source)
    for _ in range(200):
        feed.take()
        feed.took(0.000_001)
    assert max(source.asked) == 64
    for _ in range(100):
        feed.take()
        feed.took(0.01)
    assert source.asked[-1] == 1


def test_no_more_is_taken_at_a_time_than_half_of_what_may_be_here() -> None:
    source = FakeSource(*[FakeMessage() for _ in range(100)])
    feed = feed_of(source, prefetch=16)
    for _ in range(50):
        feed.take()
        feed.took(0.0)
    assert max(source.asked) == 8


def test_stopping_gives_back_what_nobody_began() -> None:
    messages = [FakeMessage(id=number) for number in range(8)]
    feed = feed_of(FakeSource(*messages))
    for _ in range(3):
        feed.take()
        feed.took(0.0)
    feed.stop()
    assert feed.take() is None
    # 1, then 2 were taken at a time, and 3 of these were begun; the fourth run was never asked for.
    begun = [message for message in messages if message.ended is None]
    assert [message.id for message in begun if message.id < 3] == [0, 1, 2]
    assert all(message.ended == ("release", 0.0) for message in messages if message not in begun)


def test_an_error_ends_it_and_is_told_once() -> None:
    told: list[Exception] = []
    feed = feed_of(FakeSource(Fenced("another"), Fenced("again")), failed=told.append)
    assert feed.take() is None
    assert feed.take() is None
    assert feed.take_many(3) == []
    assert [str(error) for error in told] == ["another"]


def test_verdicts_are_carried_out_once() -> None:
    ends = {
        ACK: ("ack",),
        GIVE_BACK: ("release", 0.0),
        Verdict("release", "", 1_500_000): ("release", 1.5),
        Verdict("nack", "why"): ("nack", "why"),
        Verdict("reject", "why"): ("reject", "why"),
    }
    for verdict, ended in ends.items():
        message = FakeMessage()
        assert carry_out(message, verdict)
        assert message.ended == ended
        assert not carry_out(message, ACK)
        assert message.ended == ended
