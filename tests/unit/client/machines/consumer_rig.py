"""A consumer's machine beside a small model of the broker, in virtual time and in any order.

What either side writes lies in a queue until the test has it arrive; a connection that is lost takes
both queues with it. Every check is made from the broker's point of view, which knows the truth.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.client.machines.consumer import ConsumerMachine
from fasti.client.machines.credit import Credit
from fasti.client.machines.now import Now
from fasti.client.machines.returns import Return
from fasti.client.machines.run import Run
from fasti.errors import FastiError, Overloaded, Unavailable
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_to_json
from fasti.protocol.schemas import LEASED

LEASE_US = 3_000_000
LOOKAHEAD_US = 200_000
Words = dict[str, Any]


@dataclass
class Stored:
    """A message at the broker. `delivery` counts leases that are not resumed ones."""

    id: int
    due_us: int
    state: str = "ready"
    attempts: int = 0
    delivery: int = 0
    token: int = 0
    until_us: int = 0


class Clock:
    """Both clocks; they move when the test says so."""

    unsure_us = 0

    def __init__(self, ahead_us: int = 0) -> None:
        # How far the broker's is before this process's.
        self.ahead_us = ahead_us
        self.at_us = 1_000_000 + ahead_us

    def now_us(self) -> int:
        return self.at_us

    def now(self) -> Now:
        here_s = (self.at_us - self.ahead_us) / 1e6
        return Now(here_s, self.at_us, 0, lambda us: (us - self.at_us) / 1e6)


class BrokerModel:
    """One topic with one consumer."""

    def __init__(self, clock: Clock, dues_us: list[int]) -> None:
        self.clock = clock
        self.messages = [Stored(n + 1, due_us) for n, due_us in enumerate(dues_us)]
        self.credit = 0
        self.refuse = False
        self.out: deque[tuple[Words, pa.RecordBatch | None]] = deque()
        self._token = 0
        self._begun = False

    def connect(self) -> None:
        self.credit, self._begun = 0, False
        self.out.clear()

    def expire(self) -> None:
        for message in self.messages:
            if message.state == "leased" and message.until_us <= self.clock.at_us:
                message.state = "ready"

    def process(self, header: Words, batch: pa.RecordBatch | None) -> None:
        """Something that the consumer wrote has arrived."""
        self.expire()
        if not self._begun:
            # The session takes the name: it is handed what is leased.
            self._begun = True
            self._hand_out([m for m in self.messages if m.state == "leased"])
        now_us, request = self.clock.at_us, header.get("request")
        reply: Words = {"request": request, "now_us": now_us}
        if self.refuse and batch is not None:
            self.refuse = False
            problem = error_to_json(Overloaded("full", retry_after_us=1_000))
            self.out.append(({"kind": "error", "error": problem, **reply}, None))
            return
        self.credit += header.get("credit", 0) + header.get("count", 0)
        if batch is not None:
            statuses = [self._finish(header["op"], row) for row in batch.to_pylist()]
            status = [[word, 1] for word in statuses]
            versions = [[1, len(statuses)]]
            outcomes = {"kind": "outcomes", "status": status, "versions": versions}
            self.out.append(({**outcomes, **reply}, None))
        elif header["op"] == "heartbeat":
            for message in self.messages:
                if message.state == "leased":
                    message.until_us = now_us + LEASE_US
            self.out.append(({"kind": "heartbeat", "held": 0, **reply}, None))
        elif header["op"] == "withdraw":
            self.credit = 0
            self.out.append(({"kind": "withdrawn", **reply}, None))
        self.deliver()

    def deliver(self) -> None:
        """Leases what is due, or soon, as far as there is credit."""
        self.expire()
        if not self._begun:
            return
        near_us = self.clock.at_us + LOOKAHEAD_US
        due = [m for m in self.messages if m.state == "ready" and m.due_us <= near_us]
        fresh = sorted(due, key=lambda m: m.due_us)[: self.credit]
        self.credit -= len(fresh)
        for message in fresh:
            message.attempts += 1
            message.delivery += 1
        self._hand_out(fresh)

    def _hand_out(self, messages: list[Stored]) -> None:
        if not messages:
            return
        now_us = self.clock.at_us
        self._token += 1
        for message in messages:
            message.state, message.token = "leased", self._token
            message.until_us = now_us + LEASE_US
        empty = {"priority": 0, "created_us": 0, "payload": b""}
        rows = [
            {field.name: empty.get(field.name) for field in LEASED}
            | {"id": m.id, "due_us": m.due_us, "attempts": m.attempts, "version": m.delivery}
            for m in messages
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=LEASED)
        header = {"kind": "leased", "token": self._token, "now_us": now_us, "leased_us": now_us}
        self.out.append((header, batch))

    def _finish(self, op: str, row: Words) -> str:
        message = self.messages[row["id"] - 1]
        if message.state == "done":
            return "done"
        if message.state != "leased" or message.token != row["token"]:
            return "stale_lease"
        if op == "extend":
            message.until_us = self.clock.at_us + LEASE_US
        elif op == "ack":
            message.state = "done"
        else:
            message.state = "ready"
            message.attempts -= op == "release"
        return "ok"


class Rig:
    """The machine, the broker, and user code, which is the test."""

    def __init__(
        self,
        prefetch: int | None,
        count: int = 6,
        rows_max: int = 2,
        *,
        clock: Clock | None = None,
        dues_us: list[int] | None = None,
        credit: Credit | None = None,
    ) -> None:
        self.clock = clock or Clock()
        if dues_us is None:
            dues_us = [self.clock.at_us + 50_000 * n for n in range(count)]
        self.broker = BrokerModel(self.clock, dues_us)
        self.machine = ConsumerMachine(
            "t",
            "worker",
            "life",
            prefetch=prefetch,
            time_limit_us=None,
            limits=Limits(batch_rows_max=rows_max),
            draw=lambda: 0.5,
            on_network=True,
            credit=credit,
        )
        self.session: Any = SimpleNamespace(
            topic="t",
            holding=self.machine.holding,
            clock=self.clock,
            taking=self.clock,
            wake=lambda: None,
        )
        self.machine.settings = TopicSettings(lease_us=LEASE_US)
        self.inbox: deque[tuple[Words, pa.RecordBatch | None]] = deque()
        self.number = 0
        self.connected = False
        self.wait_s = 0.0
        self.in_hand: list[tuple[Run, int]] = []
        # Deliveries that user code got, that it acked, and whose acks were answered otherwise.
        self.delivered: set[tuple[int, int]] = set()
        self.acked: set[tuple[int, int]] = set()
        self.stale: set[int] = set()

    # The session's thread

    def poll(self) -> str:
        """One step of the machine, carried out."""
        step = self.machine.poll(self.clock.now())
        self.wait_s = step.wait_s
        if step.action == "connect":
            self.number, _ = self.machine.connect()
            self.broker.connect()
            self.inbox.clear()
            writes = self.machine.open(self.number, self.clock.now())
            assert writes is not None
            self.connected = True
            self._write(writes)
        elif step.action == "resume":
            self.lose()
        elif step.action == "write":
            self._write(step.writes)
        return step.action

    def _write(self, writes: list[tuple[Words, Return | None]]) -> None:
        for header, returned in writes:
            self.inbox.append((header, None if returned is None else returned.batch()))

    # The network

    def arrive(self) -> None:
        """The oldest of what the consumer wrote reaches the broker."""
        if self.connected and self.inbox:
            self.broker.process(*self.inbox.popleft())

    def reply(self) -> None:
        """The oldest of what the broker wrote reaches the consumer."""
        if not self.connected or not self.broker.out:
            return
        header, batch = self.broker.out.popleft()
        machine = self.machine
        if batch is not None:
            machine.lease(machine.custody.decode(self.session, header, batch, LEASE_US))
        elif header["kind"] == "error" and machine.ends_session(header):
            self.lose()
        else:
            settled = machine.receive(header, self.clock.now())
            if settled is not None:
                self._settle(*settled, header)

    def _settle(self, returned: Return, error: FastiError | None, header: Words) -> None:
        assert error is None
        outcomes = returned.outcomes(header)
        for outcome in outcomes:
            if returned.op == "ack" and outcome.ok:
                assert self.broker.messages[outcome.id - 1].state == "done"
            elif returned.op == "ack":
                self.stale.add(outcome.id)

    def lose(self) -> None:
        """The connection is gone, with all that was on its way."""
        if self.connected:
            self.connected = False
            self.inbox.clear()
            self.broker.out.clear()
            assert self.machine.lose(Unavailable("gone"), self.clock.now()) is None

    def advance(self, us: int) -> None:
        self.clock.at_us += us
        self.broker.deliver()

    # User code

    def take(self) -> bool:
        """Takes a message if one is due here: it is ours for certain, not early, and new."""
        holding = self.machine.holding
        taken = holding.take_now(nullcontext(), self.clock, lambda: None)
        if taken is None:
            return False
        self.check_taken(*taken)
        return True

    def check_taken(self, run: Run, row: int) -> None:
        """User code has got a message."""
        self.broker.expire()
        stored = self.broker.messages[run.id_list()[row] - 1]
        delivery = (stored.id, run.value("version", row))
        assert stored.state == "leased"
        assert delivery[1] == stored.delivery
        assert delivery not in self.delivered
        assert stored.due_us <= self.clock.at_us
        self.delivered.add(delivery)
        self.in_hand.append((run, row))

    def finish(self, op: str, place: int = 0) -> None:
        if not self.in_hand:
            return
        run, row = self.in_hand.pop(place % len(self.in_hand))
        if op == "ack":
            # As `Message.ack` does.
            self.acked.add((run.id_list()[row], run.value("version", row)))
            run.acks.append(row)
            run.finished[row] = 1
            self.machine.gathering.unsent += 1
            if self.machine.gathering.put(run):
                assert self.machine.send_acks() == []
            return
        argument = 0 if op == "release" else "no"
        self.machine.give_back(Return(op, argument, [(run, np.array([row]))]))

    # In the end

    def settle(self) -> None:
        """Lets everything go its way: each message is finished, whatever happened before."""
        for _ in range(2_000):
            self.pump()
            while self.take():
                pass
            while self.in_hand:
                self.finish("ack")
            done = all(message.state == "done" for message in self.broker.messages)
            if done and self.machine.is_answered(None) and not self.machine.custody.unfinished:
                break
            self.advance(20_000)
        else:
            raise AssertionError(f"it never settled: {self.broker.messages}")
        assert not self.machine.custody._runs

    def pump(self) -> None:
        """Both sides say what they have to say, until they wait."""
        self._exchange()
        while self.poll() != "wait":
            self._exchange()

    def _exchange(self) -> None:
        while self.connected and (self.inbox or self.broker.out):
            self.arrive()
            self.reply()
