"""How gRPC is set up, each time in a process of its own: it decides once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Counts how often threads of gRPC's own had to be woken for a call.
_CALLS = """
import os, re
from contextlib import suppress
from pathlib import Path
from fasti.protocol.grpc_setup import prepare_grpc
import pyarrow.flight as flight

class Server(flight.FlightServerBase):
    def do_action(self, context, action):
        return iter([flight.Result(b"")])

def wakes():
    found = 0
    for task in Path("/proc/self/task").iterdir():
        # A thread that is listed may end before it is looked at.
        with suppress(OSError):
            if "event_engine" in (task / "comm").read_text():
                status = (task / "status").read_text()
                found += int(re.search(r"^voluntary_ctxt_switches:\\s+(\\d+)", status, re.M)[1])
    return found

prepare_grpc()
prepare_grpc()
server = Server("grpc://127.0.0.1:0")
client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
call = lambda: list(client.do_action(("x", b"")))
call()
before = wakes()
for _ in range(100):
    call()
print(os.environ.get("GRPC_EXPERIMENTS"), os.environ["GRPC_VERBOSITY"], wakes() - before)
os._exit(0)
"""


def _run(**variables: str) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")} | variables
    command = [sys.executable, "-c", _CALLS]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return printed.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_the_thread_that_waits_for_a_message_reads_it() -> None:
    experiments, verbosity, wakes = _run()
    assert (experiments, verbosity) == ("None", "NONE")
    # Several for each call otherwise.
    assert int(wakes) < 100


@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_what_the_user_set_stands() -> None:
    experiments, verbosity, wakes = _run(
        GRPC_EXPERIMENTS="event_engine_client", GRPC_VERBOSITY="ERROR"
    )
    assert (experiments, verbosity) == ("event_engine_client", "ERROR")
    assert int(wakes) > 100
