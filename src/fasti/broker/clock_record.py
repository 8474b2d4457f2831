"""What a broker's clock showed, for the next start on the same boot of the machine.

A start that finds the wall far ahead of the last event can't tell whether the broker was off for days or
the wall is wrong; but on the same boot, elapsed time tells how long it was off. So a small record says
what the clock showed at which elapsed time, while it went with the wall, and a wall that is beyond what
follows from that is doubted as a leap would be. After a reboot, on another machine, or where the system
has no name for its boot, the wall is believed.
"""

from __future__ import annotations

import json
from contextlib import suppress

from fasti.broker.clock import ClockState, EngineClock
from fasti.errors import FastiError
from fasti.runtime import MachineClock
from fasti.storage.storage_engine import OpenStorage


def write(storage: OpenStorage, machine: MachineClock, clock: EngineClock) -> None:
    """At the start, at the end, and when a leap is accepted. Nothing depends on its success."""
    reading = clock.read()
    if not machine.boot or reading.state is not ClockState.FOLLOWING:
        return
    # Elapsed time is read later than the clock: what follows from it is rather too early.
    elapsed_us = machine.elapsed_ns() // 1000
    record = {"boot": machine.boot, "elapsed_us": elapsed_us, "now_us": reading.now_us}
    with suppress(FastiError):
        storage.write_clock_record(json.dumps(record).encode())


def expected_us(storage: OpenStorage, machine: MachineClock) -> int | None:
    """What the clock would show now if it had gone on; None if that isn't known."""
    try:
        stored = storage.read_clock_record() if machine.boot else None
        if stored is None:
            return None
        record = json.loads(stored)
        passed_us = machine.elapsed_ns() // 1000 - int(record["elapsed_us"])
        known = record["boot"] == machine.boot and passed_us >= 0
        return int(record["now_us"]) + passed_us if known else None
    except (FastiError, ValueError, KeyError, TypeError):
        return None
