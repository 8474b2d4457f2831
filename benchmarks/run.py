"""Runs benchmarks in processes of their own and gathers what they print.

`python -m benchmarks.run PART DIRECTORY {arguments}` is one such process: it prints its result as
one line of JSON; `fill` then waits to be killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.durable import checkpoint_beside_traffic, durable_lease_ack, durable_produce
from benchmarks.engine import engine_alone, single_rows
from benchmarks.limits import disk_limits, machine
from benchmarks.pending import fill, reopened

PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "engine": lambda directory, **arguments: engine_alone(**arguments),
    "single": lambda directory, **arguments: single_rows(**arguments),
    "lease-ack": durable_lease_ack,
    "durable": durable_produce,
    "checkpoint": checkpoint_beside_traffic,
    "fill": fill,
    "reopened": reopened,
}
PENDING_ROWS = 10_000_000


def run(parts: list[str], directory: Path | None, rows: int | None) -> dict[str, Any]:
    """The named parts, one after another, on one disk. Long: it fills a directory and empties it."""
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as scratch:
        for part in parts:
            place = Path(scratch) / part
            place.mkdir()
            if part == "pending":
                results[part] = _pending(place, rows or PENDING_ROWS)
            else:
                arguments = {} if rows is None else {"rows": rows}
                results[part] = _child(part, place, arguments)
    return results


def _pending(place: Path, rows: int) -> dict[str, Any]:
    filled = _child("fill", place, {"rows": rows}, kill=True)
    come_and_go = rows if rows <= PENDING_ROWS else 0
    found = _child("reopened", place, {"rows": rows, "come_and_go": come_and_go})
    if come_and_go:
        # Against the process that made the pending ones, and had not been opened afresh.
        after = found["come_and_go"]["rss_anon_after_mb"]
        found["come_and_go"]["ratio_to_filled"] = round(after / filled["rss_anon_mb"], 3)
    limits = disk_limits(place)
    asked = {
        "rss_anon_mb": 1229,
        "rate_ratio": 0.8,
        "open_s": 5,
        "random": 200_000,
        "ratio_to_filled": 1.2,
    }
    return {**filled, **found, "disk": limits, "asked": asked}


def _child(part: str, place: Path, arguments: dict[str, Any], kill: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.run", part, str(place), json.dumps(arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if kill:
            process.send_signal(signal.SIGKILL)
        elif process.stdin is not None:
            process.stdin.close()
    if not line:
        raise RuntimeError(f"the benchmark {part!r} ended with code {process.returncode}")
    result: dict[str, Any] = json.loads(line)
    return result


def main() -> None:
    """One part, in this process."""
    sys.setswitchinterval(0.0005)
    part, directory, arguments = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    print(json.dumps(PARTS[part](directory, **arguments)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
