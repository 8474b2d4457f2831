"""Streams of calls without a broker: who gets one, and what becomes of it when a call goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from fasti.client import call_streams
from fasti.client.call_streams import STREAMS_MAX, CallStreams
from fasti.errors import TimedOut
from fasti.protocol.envelope import unpack
from tests.unit.client.fakes import eventually


class Chunk:
    def __init__(self, body: bytes) -> None:
        self.app_metadata = pa.py_buffer(body)


class FakeStream:
    """Both ends of a stream, which answers each request with its key, once it may."""

    def __init__(self, actions: list[str]) -> None:
        self._greeting: bytes | None = json.dumps({"actions": actions}).encode()
        self.asked: list[dict[str, Any]] = []
        self.over = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.reading = threading.Event()
        self.interrupt: BaseException | None = None
        self.ended_well = False
        self.closed = 0

    def begin(self, schema: pa.Schema) -> None:
        assert not schema.names

    def write_metadata(self, body: pa.Buffer) -> None:
        if self.over.is_set():
            raise OSError("the stream is over")
        self.asked.append(unpack(body)[0])

    def read_chunk(self) -> Chunk:
        if self._greeting is not None:
            greeting, self._greeting = self._greeting, None
            return Chunk(greeting)
        if self.interrupt is not None:
            raise self.interrupt
        self.reading.set()
        while not self.may_answer.wait(0.001):
            if self.over.is_set():
                break
        if self.over.is_set():
            if self.ended_well:
                raise StopIteration
            raise OSError("cancelled")
        return Chunk(b"answer")

    def cancel(self) -> None:
        self.over.set()

    def close(self) -> None:
        self.closed += 1
        if not self.ended_well:
            raise OSError("cancelled")


class Rig:
    def __init__(self) -> None:
        self.opened: list[FakeStream] = []
        self.refusal: Exception | None = None
        self.prepare: Callable[[FakeStream], None] = lambda stream: None
        self.streams = CallStreams(self.open_stream)

    def open_stream(self, life_s: float) -> tuple[Any, Any]:
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(["cancel", "get"])
        self.prepare(stream)
        self.opened.append(stream)
        return stream, stream

    def ask(self, action: str = "cancel", timeout: float = 30.0, **header: Any) -> Any:
        return self.streams.ask(action, header, [], timeout)

    def hurry(self) -> None:
        """The next call finds that many came just before it."""
        for _ in range(2):
            assert self.ask() is None

    def warm(self) -> FakeStream:
        """So many calls that there is a stream."""
        eventually(lambda: self.ask() is not None)
        return self.opened[-1]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    # However slow the machine is, calls of a test follow each other closely.
    monkeypatch.setattr(call_streams, "_SOON_S", 1e6)
    made = Rig()
    made.streams._called_at = -2e6
    yield made
    made.streams.close()
    eventually(lambda: made.streams._watcher is None)


def test_a_stream_is_opened_for_callers_that_call_often(rig: Rig) -> None:
    assert [rig.ask() for _ in range(2)] == [None, None]
    assert not rig.opened
    assert rig.ask().to_pybytes() == b"answer"
    assert rig.ask(topic="t").to_pybytes() == b"answer"
    (stream,) = rig.opened
    assert stream.asked == [{"action": "cancel"}, {"action": "cancel", "topic": "t"}]


def test_calls_now_and_then_are_single_ones(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_streams, "_SOON_S", 0.0)
    assert [rig.ask() for _ in range(9)] == [None] * 9
    assert not rig.opened


def test_what_the_broker_does_not_name_or_may_take_long_is_a_single_call(rig: Rig) -> None:
    rig.warm()
    assert rig.ask("checkpoint") is None
    assert rig.ask(timeout=3600.0) is None
    assert rig.ask("get") is not None
    assert len(rig.opened) == 1


def test_a_large_request_is_a_single_call_and_leaves_the_stream(rig: Rig) -> None:
    stream = rig.warm()
    asked = len(stream.asked)
    assert rig.ask(topic="x" * (1 << 20)) is None
    assert len(stream.asked) == asked
    assert rig.ask() is not None
    assert len(rig.opened) == 1


def test_callers_at_once_have_a_stream_each_up_to_a_bound(rig: Rig) -> None:
    rig.prepare = lambda stream: stream.may_answer.clear()
    rig.hurry()
    answers: list[Any] = []
    callers = [
        threading.Thread(target=lambda: answers.append(rig.ask())) for _ in range(STREAMS_MAX)
    ]
    for caller in callers:
        caller.start()
    eventually(lambda: len(rig.opened) == STREAMS_MAX)
    for stream in rig.opened:
        assert stream.reading.wait(20)
    # One more finds none, and does not wait.
    assert rig.ask() is None
    assert answers == []
    # The answer to one of them is not held up by the others.
    rig.opened[3].may_answer.set()
    eventually(lambda: len(answers) == 1)
    for stream in rig.opened:
        stream.may_answer.set()
    for caller in callers:
        caller.join(20)
    assert [answer.to_pybytes() for answer in answers] == [b"answer"] * STREAMS_MAX


def test_a_call_that_is_not_answered_in_time(rig: Rig) -> None:
    stream = rig.warm()
    stream.may_answer.clear()
    with pytest.raises(TimedOut):
        rig.ask(timeout=0.01)
    # What comes on it now would be taken for the answer to another call.
    assert rig.ask() is not None
    assert len(rig.opened) == 2


def test_a_broker_that_does_not_greet(rig: Rig) -> None:
    rig.prepare = lambda stream: (setattr(stream, "_greeting", None), stream.may_answer.clear())[0]
    rig.hurry()
    assert rig.ask(timeout=0.01) is None
    assert rig.opened[0].over.is_set()


def test_a_caller_that_is_interrupted_leaves_no_answer_to_the_next(rig: Rig) -> None:
    stream = rig.warm()
    stream.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rig.ask()
    assert stream.over.is_set()
    assert rig.ask() is not None
    assert len(rig.opened) == 2


def test_a_stream_that_breaks_is_told_and_one_that_the_broker_ended_is_not(rig: Rig) -> None:
    stream = rig.warm()
    stream.over.set()
    with pytest.raises(OSError, match="cancelled"):
        rig.ask()
    stream = rig.warm()
    stream.ended_well = True
    stream.over.set()
    # It was not carried out: the caller makes a single call of it.
    assert rig.ask() is None
    stream = rig.warm()
    stream.ended_well = True
    stream.may_answer.clear()
    done: list[Any] = []
    caller = threading.Thread(target=lambda: done.append(rig.ask()))
    stream.reading.clear()
    caller.start()
    assert stream.reading.wait(20)
    stream.over.set()
    caller.join(20)
    assert done == [None]


def test_a_broker_that_refuses_streams_is_not_asked_each_time(rig: Rig) -> None:
    rig.refusal = OSError("no")
    assert [rig.ask() for _ in range(9)] == [None] * 9
    rig.refusal = None
    assert rig.ask() is None
    # Another broker may have other limits.
    rig.streams.leave()
    assert rig.ask() is not None


def test_streams_of_a_lost_connection_are_not_used_again(rig: Rig) -> None:
    first = rig.warm()
    rig.streams.leave()
    assert first.over.is_set()
    second = rig.warm()
    second.may_answer.clear()
    second.reading.clear()
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(rig.ask()))
    caller.start()
    assert second.reading.wait(20)
    rig.streams.leave()
    # What is under way is still answered.
    assert not second.over.is_set()
    second.may_answer.set()
    caller.join(20)
    assert answers[0].to_pybytes() == b"answer"
    assert second.over.is_set()
    rig.warm()
    assert len(rig.opened) == 3


def test_idle_streams_end_and_the_thread_with_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_streams, "IDLE_S", 0.0)
    stream = rig.warm()
    assert stream.over.wait(20)
    eventually(lambda: rig.streams._watcher is None)
    assert stream.closed
    assert rig.ask() is not None


def test_nothing_is_opened_once_it_is_closed(rig: Rig) -> None:
    stream = rig.warm()
    rig.streams.close()
    assert stream.over.is_set()
    assert rig.ask() is None
    with suppress(OSError):
        stream.close()
    assert len(rig.opened) == 1


def test_a_call_that_begins_before_the_actions_are_known_takes_no_stream_that_has_not_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = call_streams._now
    warmed: list[FakeStream] = []

    def another_opens_one_first() -> float:
        monkeypatch.setattr(call_streams, "_now", now)
        warmed.append(rig.warm())
        return now()

    monkeypatch.setattr(call_streams, "_now", another_opens_one_first)
    assert rig.ask("checkpoint") is None
    (stream,) = warmed
    assert {header["action"] for header in stream.asked} == {"cancel"}
