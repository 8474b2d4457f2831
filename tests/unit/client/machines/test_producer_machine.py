"""The producer's protocol in virtual time, beside a small model of the broker."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.client.machines.producer import UNDER_WAY_MAX, Parcel, ProducerMachine
from fasti.errors import FastiError, InvalidArgument, Overloaded, Unavailable

DEADLINE_S = 5.0


class Rig:
    """What is written lies in a queue until it arrives; a lost connection takes it along."""

    def __init__(self) -> None:
        self.now = 100.0
        names = count()
        self.machine: ProducerMachine[Parcel] = ProducerMachine(
            Parcel,
            lambda: f"p{next(names)}",
            lambda: 0.5,
            deadline_s=DEADLINE_S,
            rows_max=100,
            bytes_max=1 << 20,
        )
        self.written: deque[tuple[str, int, Parcel]] = deque()
        self.replies: deque[FastiError | None] = deque()
        self.name = ""
        self.refusal: FastiError | None = None
        self.deaf = False
        # What the broker has: the last sequence of each name, and the numbers of parcels in order.
        self.last: dict[str, int] = {}
        self.stored: list[int] = []
        self.answers: dict[int, FastiError | None] = {}
        self.sent = 0

    def send(self) -> None:
        if self.machine.has_room:
            parcel = self.machine.gather("reject", None, self.now)
            parcel.payloads.append(b"x")
            parcel.size_bytes += 1
            self.sent = parcel.number

    def poll(self) -> str:
        machine = self.machine
        step = machine.poll(self.now)
        self._settle(step.failed)
        if step.parcel is not None:
            batch = step.parcel.seal()
            if not machine.connected:
                self.drop()
                number, self.name, schema = machine.connect(batch.schema.names)
                assert machine.opened(number, schema)
            header = machine.write(step.parcel)
            assert header is not None
            assert len(machine._under_way) <= UNDER_WAY_MAX
            self.written.append((self.name, header["sequence"], step.parcel))
        return step.action

    def drop(self) -> None:
        self.written.clear()
        self.replies.clear()
        self.deaf = False

    def arrive(self) -> None:
        """The oldest batch reaches the broker, which takes each number of a name once, in order."""
        if not self.written:
            return
        name, sequence, parcel = self.written.popleft()
        if self.deaf:
            return
        if self.refusal is not None and sequence > self.last.get(name, 0):
            self.replies.append(self.refusal)
            self.refusal, self.deaf = None, True
            return
        assert sequence <= self.last.get(name, 0) + 1, "a number was left out"
        if sequence > self.last.get(name, 0):
            self.last[name] = sequence
            self.stored.append(parcel.number)
        self.replies.append(None)

    def reply(self) -> None:
        if self.replies and self.machine.connected:
            parcel, failed = self.machine.receive(self.replies.popleft(), self.now)
            if parcel is not None:
                self._answer(parcel, None)
            self._settle(failed)

    def lose(self) -> None:
        if self.machine.connected:
            self._settle(self.machine.break_off(Unavailable("gone"), self.now))
        self.drop()

    def _settle(self, failed: list[tuple[Parcel, FastiError]]) -> None:
        for parcel, error in failed:
            self._answer(parcel, error)

    def _answer(self, parcel: Parcel, error: FastiError | None) -> None:
        assert parcel.number not in self.answers
        self.answers[parcel.number] = error
        if error is None:
            assert parcel.number in self.stored
        elif not parcel.maybe:
            assert parcel.number not in self.stored
        self.machine.settle(parcel)

    def pump(self) -> None:
        for _ in range(50):
            waits = self.poll() == "wait"
            self.arrive()
            self.reply()
            if waits and not self.written and not self.replies:
                return

    def settle(self) -> None:
        """Lets everything go its way: each parcel has its answer."""
        mark = self.machine.mark()
        for _ in range(1_000):
            self.pump()
            if self.machine.answered(mark):
                break
            self.now += 0.1
        assert self.machine.answered(mark)
        assert sorted(self.answers) == list(range(1, self.sent + 1))
        assert self.stored == sorted(set(self.stored)), "once each, in order"
        assert (self.machine.rows, self.machine.size_bytes) == (0, 0)


STEPS = st.one_of(
    st.sampled_from(["send", "seal", "pump", "poll", "arrive", "reply"]),
    st.sampled_from(["send", "lose", "wait", "late", "full", "bad"]),
)


@given(steps=st.lists(STEPS, min_size=20, max_size=100))
def test_whatever_comes_in_whatever_order(steps: list[str]) -> None:
    """Each batch is carried out at most once and in order, and its answer is true."""
    rig = Rig()
    for step in steps:
        if step == "seal":
            rig.machine.seal()
        elif step in ("wait", "late"):
            rig.now += 0.05 if step == "wait" else DEADLINE_S
        elif step in ("full", "bad"):
            refusals = {"full": Overloaded("full", retry_after_us=1), "bad": InvalidArgument("no")}
            rig.refusal = refusals[step]
        else:
            getattr(rig, step)()
    rig.settle()


def test_what_was_written_to_a_lost_connection_goes_again_under_its_number() -> None:
    rig = Rig()
    for _ in range(3):
        rig.send()
        rig.machine.seal()
    while rig.poll() == "write":
        pass
    rig.arrive()
    rig.lose()
    assert rig.poll() == "wait"
    rig.now += 1.0
    while rig.poll() == "write":
        pass
    assert [sequence for _, sequence, _ in rig.written] == [1, 2, 3]
    rig.settle()
    assert rig.stored == [1, 2, 3]


def test_a_refused_batch_fails_alone_and_the_others_move_up() -> None:
    rig = Rig()
    rig.refusal = InvalidArgument("no")
    for _ in range(3):
        rig.send()
        rig.machine.seal()
    rig.settle()
    assert isinstance(rig.answers[1], InvalidArgument)
    assert rig.stored == [2, 3]
    assert rig.last == {"p0": 2}


def test_an_idle_producer_takes_its_leave() -> None:
    rig = Rig()
    rig.send()
    rig.settle()
    # Before its thread looks: the next send needs nobody else.
    assert rig.machine.idle
    assert rig.poll() == "wait"
    assert rig.machine.idle
    rig.now += 60.0
    assert rig.poll() == "end"
    assert rig.machine.last_word
    assert not rig.machine.connected


@pytest.mark.parametrize("rows", [1, 99])
def test_a_full_buffer_has_no_room(rows: int) -> None:
    rig = Rig()
    for _ in range(rows):
        rig.send()
    rig.machine.seal()
    assert rig.machine.has_room
    for _ in range(100 - rows):
        rig.send()
    assert rig.machine.full
    rig.machine.seal()
    assert not rig.machine.has_room
    rig.settle()
    assert not rig.machine.full
