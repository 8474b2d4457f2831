"""What is followed, called for or thrown away, when the end comes at the worst moment."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from fasti.client import client as client_module
from fasti.client.calls import Book, Pending
from fasti.client.client import Client
from fasti.client.failures import Failures
from fasti.client.following import Following
from fasti.client.kept import Kept, keep
from fasti.client.thrown_away import ThrownAway
from fasti.errors import Closed, RowsFailed
from tests.unit.client.fakes import FakeClock, FakeStream, FakeTransport

LARGE = pa.RecordBatch.from_arrays([pa.array([bytes(20 << 20)])], ["payload"])
SMALL = pa.RecordBatch.from_arrays([pa.array([b"x"])], ["payload"])


def test_what_comes_late_of_a_stream_takes_no_room_from_the_next() -> None:
    """The reading thread of the next one would wait for that room for ever."""
    transport = FakeTransport()
    following = Following(transport)
    following.begin({"call": "follow"})
    first = transport.stream()
    first.arrived({"position": 1}, LARGE)
    # There is no room for more: who reads waits, until the stream is let go.
    late = threading.Thread(target=lambda: first.arrived({"position": 2}, LARGE), daemon=True)
    late.start()
    following.end()
    following.begin({"call": "follow"})
    late.join(20)
    assert not late.is_alive()
    second: FakeStream = transport.stream(1)
    reading = threading.Thread(target=lambda: second.arrived({"position": 2}, SMALL), daemon=True)
    reading.start()
    found = following.take(time.monotonic() + 20)
    assert found == ({"position": 2}, SMALL)
    reading.join(20)
    following.close()


def test_a_call_that_begins_when_no_answer_can_come_any_more() -> None:
    """It is told at once, not when its time is over."""
    clock = FakeClock()
    book = Book(clock)
    before, after = Pending(clock.at_us + 1), Pending(clock.at_us + 1)
    book.add("before", before)
    book.fail(Closed("the client is closed"))
    book.add("after", after)
    assert before.wait(clock)
    assert after.wait(clock)
    assert isinstance(after.error, Closed)
    assert book.take("after") is None


class Box:
    """As much of an outbox as a client looks at."""

    topic = "emails"

    def __init__(self, settled: bool) -> None:
        self.settled = self.over = settled
        self.failures = Failures(self.topic)


class Finding(list[Any]):
    """Outboxes; the collector of garbage finds another at the moment at which one is taken out."""

    def __init__(self, given: list[Box], found: Box) -> None:
        super().__init__(given)
        self._found = found

    def remove(self, box: Any) -> None:
        self.append(self._found)
        super().remove(box)

    def __setitem__(self, place: Any, value: Any) -> None:
        self.append(self._found)
        super().__setitem__(place, value)


def test_a_producer_that_is_thrown_away_while_others_are_looked_at_is_not_forgotten() -> None:
    """What it has under way would not be waited for."""
    thrown_away = ThrownAway()
    busy, late = Box(settled=False), Box(settled=False)
    thrown_away._boxes = Finding([Box(settled=True), busy], late)
    thrown_away._forget()
    assert list(thrown_away) == [busy, late]


def test_two_threads_may_pass_over_the_same_producer_that_was_thrown_away() -> None:
    """Tasks that change messages at once do so in threads; one of them would have raised."""
    thrown_away = ThrownAway()

    class TakenOut(Box):
        @property
        def over(self) -> bool:  # type: ignore[override]
            thrown_away._boxes.clear()  # As by the other thread.
            return True

        @over.setter
        def over(self, value: bool) -> None: ...

    for _ in range(100):
        thrown_away.add(TakenOut(settled=True))  # type: ignore[arg-type]
    assert list(thrown_away) == []


def test_producers_that_are_thrown_away_are_forgotten_when_they_are_answered() -> None:
    """A program that makes one for each message runs for months."""
    thrown_away = ThrownAway()
    busy = Box(settled=False)
    thrown_away.add(busy)  # type: ignore[arg-type]
    for _ in range(10_000):
        thrown_away.add(Box(settled=True))  # type: ignore[arg-type]
    assert len(thrown_away._boxes) < 50
    assert list(thrown_away) == [busy]


def test_a_failure_of_a_producer_that_was_thrown_away_is_raised_by_close() -> None:
    """Also when the producer was forgotten long before."""
    client = Client(FakeTransport())
    failed = Box(settled=True)
    failed.failures.add("send", [{"status": "conflict", "key": "k"}])
    client._thrown_away.add(failed)  # type: ignore[arg-type]
    client._thrown_away._forget()
    assert not client._thrown_away._boxes
    with pytest.raises(RowsFailed, match="1 message of 'emails' failed"):
        client.close()


class Adding:
    """Something of a client's; while it is looked at another is made, by another thread."""

    def __init__(self, kept: Kept[Any]) -> None:
        self._kept = kept

    def look(self) -> None:
        more = Plain()
        thread = threading.Thread(target=lambda: self._kept.add(more))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()


class Plain:
    """Something else."""


def test_what_a_client_made_may_be_looked_through_while_it_makes_more() -> None:
    kept: Kept[Any] = Kept()
    first = Adding(kept)
    assert kept.add(first)
    for each in kept:
        each.look()
    later = Plain()
    assert kept.add(later)
    assert later in kept.end()
    assert not kept.add(Plain())


@pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])
def test_what_is_made_while_its_client_is_closed_is_closed_too(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end it any more."""
    client = Client(FakeTransport())
    made: list[Any] = []
    check = client._check_open

    def close_then() -> None:
        check()
        client.close()

    def noting(kept: Any, each: Any) -> None:
        made.append(each)
        keep(kept, each)

    client._check_open = close_then  # type: ignore[method-assign]
    monkeypatch.setattr(client_module, "keep", noting)
    with pytest.raises(Closed):
        getattr(client, kind)("emails")
    ended = {
        "producer": lambda: made[0].outbox.machine.closed,
        "consumer": lambda: made[0]._closed,
        "reader": lambda: made[0].closed,
    }
    assert ended[kind]()


def test_a_client_that_is_thrown_away_by_a_thread_of_its_own_inbox() -> None:
    """The collector of garbage runs in any thread, and that one may have the session's lock."""
    transport = FakeTransport()
    transport.on_open = FakeStream.accept_all
    clients = [Client(transport)]
    inbox = clients[0].calls.inbox()
    session = inbox._consumer.session

    def collect() -> None:
        with session.lock:
            clients.clear()
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    inbox._thread.join(20)
    assert inbox.broken
    session.close(5)
