"""Messages reach workers once each, and what nobody began goes back."""

from __future__ import annotations

import threading
from typing import Any

from fasti.app.feed import MessageFeed, carry_out
from fasti.app.verdicts import ACK, GIVE_BACK, Verdict
from fasti.errors import Fenced
from tests.unit.app.fakes import FakeMessage, FakeSource


def feed_of(source: FakeSource, failed: Any = None) -> MessageFeed:
    return MessageFeed(source, failed or (lambda error: None))


def test_every_message_is_taken_once_by_many_threads() -> None:
    messages = [FakeMessage(id=number) for number in range(1000)]
    feed = feed_of(FakeSource(*messages))
    taken: list[list[int]] = [[] for _ in range(4)]
    rest = threading.Semaphore(0)

    def work(mine: list[int]) -> None:
        while (message := feed.take()) is not None:
            mine.append(message.id)
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


def test_one_is_taken_for_each_worker_that_is_free_and_no_more() -> None:
    messages = [FakeMessage(id=number) for number in range(8)]
    source = FakeSource(*messages)
    feed = feed_of(source)
    assert [feed.take().id for _ in range(3)] == [0, 1, 2]
    assert len(source.coming) == 5
    feed.stop()
    assert feed.take() is None
    assert len(source.coming) == 5


def test_what_is_taken_while_it_stops_goes_back() -> None:
    message = FakeMessage()
    source = FakeSource()
    feed = feed_of(source)

    def take_now() -> Any:
        feed.stop()
        return message

    source.take_now = take_now  # type: ignore[method-assign]
    assert feed.take() is None
    assert message.ended == ("release",)


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
        GIVE_BACK: ("release",),
        Verdict("release", "", 1_500_000): ("release", 1.5),
        Verdict("release", "", due_us=7): ("release", 7),
        Verdict("nack", "why"): ("nack", "why"),
        Verdict("nack", "why", 0): ("nack", "why", 0.0),
        Verdict("nack", "why", due_us=7): ("nack", "why", 7),
        Verdict("reject", "why"): ("reject", "why"),
    }
    for verdict, ended in ends.items():
        message = FakeMessage()
        assert carry_out(message, verdict)
        assert message.ended == ended
        assert not carry_out(message, ACK)
        assert message.ended == ended
