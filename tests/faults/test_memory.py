"""What a stranger may make a broker remember: bounded, counted, and refused beyond the budget.

Real processes; their own memory is read from /proc. Nothing is timed: a scrape is as long as its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.doors.link import BrokerLink
from fasti.errors import Overloaded, Unavailable
from tests.conformance.protocol_client import expand, rows
from tests.faults.conftest import Tried
from tests.integration.serve_rig import SEGMENTS, ask, client_of

MIB = 1 << 20
Run = Callable[..., BrokerProcess]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(**settings: object) -> BrokerProcess:
        settings = {**SEGMENTS, "leases_max": 4096, **settings}
        return BrokerProcess(tmp_path / "data", http="127.0.0.1:0", settings=settings)

    return start


def anonymous_bytes(broker: BrokerProcess) -> int:
    """Memory of the process without mapped files."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def scrape(broker: BrokerProcess) -> tuple[str, dict[str, dict[tuple[str, ...], float]]]:
    """The page, and its samples by name and values of labels."""
    answer = ask(broker, "/metrics")
    assert answer.status == 200
    text = answer.body.decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return text, found


def create_topics(client: fasti.Client, count: int) -> None:
    for number in range(count):
        client.create_topic(f"topic-{number}")


def later(count: int) -> pa.RecordBatch:
    return rows(payload=[b""] * count, delay_us=[3_600_000_000] * count)


@pytest.mark.fault(
    "memory",
    "topics of 4,096 partitions with 100 groups, all empty",
    "they cost next to nothing; a scrape is bounded and says what it left out",
)
def test_partitions_and_groups_that_hold_nothing(run: Run, tried: Tried) -> None:
    with run(metrics_series_max=2_000) as broker, fasti.connect(broker.address) as client:
        client.create_topic("warm", kind="log")
        scrape(broker)
        before = anonymous_bytes(broker)
        for number in range(10):
            client.create_topic(f"timeline-{number}", partitions=4096)
        client.create_topic("events", kind="log", partitions=4096)
        for number in range(100):
            client.groups("events").create(f"group-{number}")
        text, samples = scrape(broker)
        grown = anonymous_bytes(broker) - before
        # 10 such topics and 100 such groups took more than a gigabyte.
        assert grown < 64 * MIB
        series = sum(1 for line in text.splitlines() if not line.startswith("#"))
        assert series < 2_100
        assert len(text) < MIB
        # Each group has its place, all partitions added up; single partitions are left out.
        lags = samples["fasti_group_lag"]
        assert set(lags) == {(f"group-{number}", "(all)", "events") for number in range(100)}
        assert samples["fasti_metrics_series_left_out"][()] >= 100 * 5 * 4_095
        tried.seen = f"{grown / MIB:.0f} MiB more, {series} series, {len(text) >> 10} KiB"
        assert "left out" in broker.log()
        # The HTTP process takes no page that is longer than it may be.
        with pytest.raises(Unavailable):
            BrokerLink(f"{broker.host}:{broker.port}", reply_bytes_max=2_000).call("metrics")


@pytest.mark.fault(
    "memory",
    "a producer sends eight batches of 20,000 rows",
    "their receipts take bytes, and answer the same after a restart",
)
def test_receipts_of_large_batches(run: Run, tried: Tried) -> None:
    with run(memory="256MiB") as broker:
        client = client_of(broker)
        client.call("create_topic", {"topic": "t", "settings": {}})
        batch = later(20_000)
        stream = client.produce(batch.schema, topic="t", producer="p")
        receipts = [stream.ask(batch, {"sequence": number}) for number in range(1, 9)]
        stream.finish()
        taken = scrape(broker)[1]["fasti_memory_bytes"][("producers",)]
        assert taken < 4_096
        broker.restart()
        stream = client_of(broker).produce(batch.schema, topic="t", producer="p")
        for number, receipt in enumerate(receipts, 1):
            again = stream.ask(batch, {"sequence": number})
            assert again["sent_before"] is True
            assert [o.id for o in expand(again)] == [o.id for o in expand(receipt)]
        stream.finish()
        tried.times, tried.seen = 8, f"{taken:.0f} bytes for eight receipts"


@pytest.mark.fault(
    "memory",
    "a stranger sends batches under thousands of producer names",
    "beyond limits.producers_max a new one is refused, those that are known go on",
)
def test_producers_without_number(run: Run, tried: Tried) -> None:
    with run(**{"limits.producers_max": 200}) as broker:
        client = client_of(broker)
        client.call("create_topic", {"topic": "t", "settings": {}})
        codes: list[str] = []
        before = anonymous_bytes(broker)
        for number in range(300):
            stream = client.produce(later(1).schema, topic="t", producer=f"stranger-{number}")
            receipt = stream.ask(later(1), {"sequence": 1})
            codes.append(receipt["error"]["code"] if "error" in receipt else "ok")
            stream.finish()
        assert codes == ["ok"] * 200 + ["overloaded"] * 100
        assert anonymous_bytes(broker) - before < 64 * MIB
        known = client.produce(later(1).schema, topic="t", producer="stranger-0")
        assert "error" not in known.ask(later(1), {"sequence": 2})
        known.finish()
        tried.times = 300


@pytest.mark.fault(
    "memory",
    "messages until the budget is spent",
    "overloaded with a remedy; acks, cancels and deletes go on, and then produce does",
)
def test_a_spent_budget_recovers(run: Run, tried: Tried) -> None:
    with run(memory="8MiB") as broker, fasti.connect(broker.address) as client:
        client.create_topic("work")
        with client.producer("work") as producer:
            producer.send(b"now").result()
        raw = client_of(broker)
        raw.call("create_topic", {"topic": "fill", "settings": {}})
        sent, refusal = 0, {}
        stream = raw.produce(later(1).schema, topic="fill")
        while not refusal and sent < 1_000_000:
            receipt = stream.ask(later(20_000))
            refusal = receipt.get("error") or {}
            sent += 20_000
        stream.finish()
        assert refusal["code"] == "overloaded"
        assert "memory" in refusal["message"]
        assert refusal["retry_after_us"]
        samples = scrape(broker)[1]
        used, budget = (
            samples["fasti_memory_used_bytes"][()],
            samples["fasti_memory_budget_bytes"][()],
        )
        assert used <= budget
        assert used == sum(samples["fasti_memory_bytes"].values())
        with pytest.raises(Overloaded, match="memory"):
            create_topics(client, 10_000)
        with client.consumer("work") as consumer:
            next(iter(consumer)).ack()
        client.delete_topic("fill")
        client.create_topic("again")
        with client.producer("again") as producer:
            producer.send(b"").result()
        tried.seen = f"overloaded at {used / budget:.0%} of the budget, then as before"
