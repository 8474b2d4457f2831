"""`fasti bench throughput`: how many messages a second go in and out over the wire.

First of all messages that fall due in another order than they came, which is what a timeline is for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fasti
from benchmarks.flight_limit import flight_limit
from benchmarks.limits import disk_limits, machine
from benchmarks.wire import ClientProcess, broker, cpu_seconds, run_job
from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Show = Callable[[str], None]

ASKED = {
    "random_of_arrival_order": 0.7,
    "produce": 1_000_000,
    "lease_ack": 1_000_000,
    "both_at_once": 700_000,
    "send": 300_000,
    "consume": 300_000,
}


def throughput(directory: Path | None, rows: int, show: Show) -> Figures:
    """Batches and single messages, one way and both ways; beside the machine's limits."""
    show("the machine's limits")
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as scratch:
        disk = disk_limits(Path(scratch))
    limits = {"disk": disk, "flight_rows_per_s": flight_limit()}
    figures: Figures = {}
    with broker(directory) as process:
        with fasti.connect(process.address) as client:
            for topic in ("random", "batches", "single"):
                client.create_topic(topic)
        address = process.address
        show("produce, batches of 5,000, due at random within a second")
        given = {"topic": "random", "rows": rows}
        figures["produce_random"] = run_job(
            "produce_batches", address, **given, spread_us=1_000_000, shuffled=True
        )
        time.sleep(1.0)  # The last ones fall due.
        show("lease and ack, batches of 5,000, due at random")
        figures["lease_ack_random"] = run_job("consume_batches", address, **given)
        show("produce, batches of 5,000")
        figures["produce"] = run_job("produce_batches", address, topic="batches", rows=rows)
        show("lease and ack, batches of 5,000")
        figures["lease_ack"] = run_job("consume_batches", address, topic="batches", rows=rows)
        show("send, message by message")
        figures["send"] = run_job("send_each", address, topic="single", rows=rows // 4)
        show("consume, message by message")
        figures["consume"] = run_job("consume_each", address, topic="single", rows=rows // 4)
    for name, shuffled in (("both_at_once_random", True), ("both_at_once", False)):
        order = "at random within" if shuffled else "over"
        show(f"both at once, due {order} half a second, on a broker of its own")
        with broker(directory) as process:
            figures[name] = _both(process, 2 * rows, shuffled)
    by_order = figures["lease_ack_random"], figures["lease_ack"]
    figures["lease_ack_random"]["of_arrival_order"] = round(
        by_order[0]["messages_per_s"] / by_order[1]["messages_per_s"], 3
    )
    rate = figures["produce"]["messages_per_s"]
    figures["produce"]["of_flight"] = round(rate / limits["flight_rows_per_s"], 3)
    payload_mb = rate * 100 / 1e6
    figures["produce"]["payload_of_disk"] = round(payload_mb / disk["durable_mb_per_s"], 3)
    return {"machine": machine(), "limits": limits, **figures, "asked": ASKED}


def _both(process: BrokerProcess, rows: int, shuffled: bool) -> Figures:
    with fasti.connect(process.address) as client:
        client.create_topic("both")
    given = {"topic": "both", "rows": rows}
    order = {"spread_us": 500_000, "shuffled": shuffled}
    producer = ClientProcess("produce_batches", process.address, **given, **order)
    consumer = ClientProcess("consume_batches", process.address, **given)
    before = cpu_seconds(process.pid)
    consumer.go()
    producer.go()
    produced, consumed = producer.result(), consumer.result()
    return {
        "produce_messages_per_s": produced["messages_per_s"],
        "lease_ack_messages_per_s": consumed["messages_per_s"],
        "mean_batch": consumed["mean_batch"],
        "broker_cpu_s": round(cpu_seconds(process.pid) - before, 2),
    }
