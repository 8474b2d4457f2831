"""A broker under traffic whose file calls fail at a chosen moment, and what must hold all the same.

Each round sends enough to begin new segments, cancels some of what the round before it sent, and asks for
a checkpoint, while the nth file call of a sort fails: once, or until the round is over. Calls are made
without retries, so that each shows its own answer. The machine is healed after each round, and what was
acknowledged is compared with what is there.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import Refused, refusal, rows, statuses
from tests.faults.shim import Calls, MachineFaults
from tests.integration.serve_rig import ask, client_of

# Segments and checkpoints come and go with every few sends.
ROLLING = {
    "segment_size": "64KiB",
    "checkpoint_size": "256KiB",
    "memory": "64MiB",
    "leases_max": 4096,
}
PATIENCE_S = 40.0
HOUR_US = 3_600_000_000
# What a call may be told while the disk is ill. Nothing of it is a fault of the program.
REFUSALS = {"storage_full", "storage_failed", "unknown", "closed", "unavailable", "overloaded"}


class Sweep:
    """One broker, round after round."""

    def __init__(self, data: Path, machine: MachineFaults) -> None:
        self.machine = machine
        self.rounds = 0
        self.broker = BrokerProcess(
            data, http="127.0.0.1:0", env=machine.environment, settings=ROLLING
        )
        self._data = str(data)
        self._client = client_of(self.broker)
        self._client.call("create_topic", {"topic": "t", "settings": {}})
        # Keys by what is known of them.
        self._there: set[str] = set()
        self._gone: set[str] = set()
        self._doubtful: set[str] = set()
        self._serial = 0
        self.ends = 0
        self._last = ""
        self.answers: dict[str, int] = {}
        # The first checkpoint has nothing to delete.
        self.round(Calls.WRITE, errno.EIO, 0, times=0)

    def close(self) -> None:
        self.machine.heal()
        self._client.flight.close()
        self.broker.close()

    def round(self, calls: Calls, error: int, nth: int, times: int) -> None:
        """Traffic while the nth call fails; then everything is well again, and nothing is lost."""
        self.rounds += 1
        old = sorted(self._there)[:2]
        self.machine.fail(calls, error, self._data, times=times, after=nth)
        for _ in range(4):
            self._send()
        self._cancel(old)
        self._call(lambda: self._client.call("checkpoint"))
        self._send()
        if times < 0 and self._last == "storage_full":
            # What is refused now is refused for as long as the machine is ill, and health says so.
            answer = ask(self.broker, "/readyz")
            assert (answer.status, answer.json()["details"]["reason"]) == (503, "storage_full")
            self._count("not ready")
        self.machine.heal()
        what = f"{calls!r} {os.strerror(error)} after {nth}, {times} times"
        self._await_ready(what)
        self._send()
        found = self._keys()
        assert self._there <= found, (what, "lost", sorted(self._there - found))
        assert not self._gone & found, (what, "came back", sorted(self._gone & found))
        assert found <= self._there | self._doubtful, what

    def _call(self, function: Callable[[], Any]) -> Any:
        """Its result; None if it was refused for a reason that passes, or the broker has ended."""
        try:
            result = function()
        except fl.FlightTimedOutError:
            raise
        except (Refused, fl.FlightError) as error:
            refused = error if isinstance(error, Refused) else refusal(error)
            if refused is None:
                self._start_again()
            else:
                assert refused.code in REFUSALS, refused
                self._count(refused.code)
            return None
        self._count("ok")
        return result

    def _count(self, word: str) -> None:
        self._last = word
        self.answers[word] = self.answers.get(word, 0) + 1

    def _send(self) -> None:
        keys = [f"key-{self._serial + n}" for n in range(5)]
        self._serial += len(keys)
        self._doubtful |= set(keys)
        batch = rows(payload=[b"x" * 7000] * 5, key=keys, delay_us=[HOUR_US] * 5)
        if self._call(lambda: self._client.send("t", batch)) is not None:
            self._there |= set(keys)

    def _cancel(self, keys: list[str]) -> None:
        if not keys:
            return
        self._there -= set(keys)
        self._doubtful |= set(keys)
        reply = self._call(lambda: self._client.call("cancel", {"topic": "t"}, rows(key=keys)))
        if reply is not None:
            assert set(statuses(reply)) == {"ok"}
            self._gone |= set(keys)
            self._doubtful -= set(keys)

    def _keys(self) -> set[str]:
        return {row["key"] for row in self._client.list("t", columns=["key"], state="scheduled")}

    def _start_again(self) -> None:
        """It ended by itself, with a reason; on a disk that is ill it may not start either."""
        assert self.broker.wait(PATIENCE_S) != 0
        self._count("ended")
        self.ends += 1
        self.machine.heal()
        self.broker.start()
        # The old connection would wait before it tries again.
        self._client.flight.close()
        self._client = client_of(self.broker)

    def _await_ready(self, what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = ask(self.broker, "/readyz")
            except OSError:  # With the broker its HTTP process has ended.
                self._start_again()
                continue
            if answer.status == 200:
                return
            assert time.monotonic() < until, (what, answer.body, self.broker.log()[-3000:])
            time.sleep(0.02)
