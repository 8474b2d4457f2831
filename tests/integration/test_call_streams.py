"""Streams of small calls between the SDK and a real broker, of both faces, and what may go wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.client import call_streams
from fasti.client.call_streams import STREAMS_MAX
from fasti.client.flight_transport import FlightTransport
from fasti.config import ShardSettings
from fasti.doors.flight import FlightDoor
from fasti.errors import OutcomeUnknown, TimedOut, Unavailable
from fasti.model import Limits
from fasti.storage.directory import passing_storage
from tests.integration.serve_rig import SEGMENTS
from tests.unit.client.fakes import eventually

SETTINGS = ShardSettings(
    segment_bytes=1 << 18,
    memory_bytes=64 << 20,
    leases_max=4096,
    limits=Limits(call_streams_max=6, caller_share=100),
)


class Doorway:
    """A broker in this process behind its Flight door, whose calls can be held up and counted."""

    def __init__(self) -> None:
        self.shard = Shard(passing_storage(), SETTINGS)
        self.service = Service(OneShard(self.shard), Metrics())
        self.door = FlightDoor(self.service)
        self.address = f"fasti://127.0.0.1:{self.door.port}"
        self.go_on = threading.Event()
        self.held = threading.Semaphore(0)
        self.streams = 0
        self._count_streams()

    def _count_streams(self) -> None:
        opened = self.service.call_stream

        def counted(*given: Any) -> Any:
            self.streams += 1
            return opened(*given)

        self.service.call_stream = counted  # type: ignore[method-assign]

    def hold(self, owner: str) -> None:
        """Calls of this owner are carried out when `go_on` is set."""
        call = self.service.call

        def held(caller: Any, action: str, header: dict[str, Any], parts: Any = ()) -> Any:
            if header.get("owner") == owner:
                self.held.release()
                assert self.go_on.wait(60)
            return call(caller, action, header, parts)

        self.service.call = held  # type: ignore[method-assign]

    def close(self) -> None:
        self.go_on.set()
        self.service.begin_stopping()
        self.door.stop()
        self.service.close()
        self.shard.close(checkpoint=False)


@pytest.fixture(autouse=True)
def close_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, calls of a test follow each other closely."""
    monkeypatch.setattr(call_streams, "_SOON_S", 1e6)


@pytest.fixture
def doorway() -> Iterator[Doorway]:
    made = Doorway()
    yield made
    made.close()


@pytest.fixture
def client(doorway: Doorway) -> Iterator[fasti.Client]:
    with fasti.connect(doorway.address) as made:
        made.create_topic("jobs")
        made.create_topic("facts", kind="kv")
        with made.producer("jobs") as producer:
            producer.send_batch([b"x"] * 50, key=[f"k{n}" for n in range(50)], delay="1h")
        yield made


def open_streams(doorway: Doorway) -> int:
    return sum(doorway.service.shares.call_streams.held().values())


def warm(doorway: Doorway, client: fasti.Client) -> None:
    """Calls until there is a stream."""
    eventually(lambda: client.messages("jobs").count() and open_streams(doorway))


def test_calls_of_every_sort_share_one_stream(doorway: Doorway, client: fasti.Client) -> None:
    warm(doorway, client)
    jobs, facts = client.messages("jobs"), client.kv("facts")
    assert jobs.move(key="k1", delay="2h").version == 2
    assert jobs.cancel(key="k1").ok
    assert jobs.cancel(key=["k1", "k2"]).status == ["cancelled", "ok"]
    assert jobs.update(key="k3", payload=b"new").ok
    found = jobs.get(key="k3")
    assert found is not None
    assert found["payload"] == b"new"
    assert jobs.cancel(key=[f"k{n}" for n in range(4, 50)]).all_ok
    assert facts.put("a", b"1").version == 1
    entry = facts.get("a")
    assert entry is not None
    assert entry.value == b"1"
    assert facts.delete("a").ok
    with client.transaction() as transaction:
        transaction.send("jobs", b"y", key="n")
    with pytest.raises(fasti.errors.NotFound):
        client.messages("nowhere").cancel(key="k")
    assert jobs.count()["scheduled"] >= 1
    assert doorway.streams == open_streams(doorway) == 1


def test_idle_streams_end_by_themselves(doorway: Doorway, client: fasti.Client) -> None:
    warm(doorway, client)
    eventually(lambda: open_streams(doorway) == 0)
    assert client.messages("jobs").cancel(key="k1").ok


def test_threads_do_not_wait_for_each_other(doorway: Doorway, client: fasti.Client) -> None:
    """The calls of all but one stand still, more of them than there may be streams."""
    doorway.hold("slow")
    warm(doorway, client)
    outcomes: list[str] = []

    def cancel(number: int) -> None:
        with_owner = fasti.client.messages.Messages(client.transport, "jobs", "slow")
        outcomes.append(with_owner.cancel(key=f"k{number}").status)

    count = STREAMS_MAX + 4
    threads = [threading.Thread(target=cancel, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert doorway.held.acquire(timeout=60)
    # The broker gave out what it has, and the rest are single calls.
    assert open_streams(doorway) <= SETTINGS.limits.call_streams_max
    assert outcomes == []
    for number in range(20, 30):
        assert client.messages("jobs").cancel(key=f"k{number}").ok
    doorway.go_on.set()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["ok"] * count


def test_a_call_that_takes_too_long(doorway: Doorway, client: fasti.Client) -> None:
    doorway.hold("slow")
    warm(doorway, client)
    with pytest.raises(TimedOut, match="did not answer cancel within"):
        client.transport.call("cancel", {"topic": "jobs", "owner": "slow"}, timeout=0.05)
    doorway.go_on.set()
    # Its answer, which comes now, is not taken for that of another call.
    assert client.messages("jobs").cancel(key="k1").ok
    assert client.messages("jobs").count()["scheduled"] == 49


def test_a_broker_that_stops_answers_what_is_under_way(
    doorway: Doorway, client: fasti.Client
) -> None:
    doorway.hold("slow")
    warm(doorway, client)
    outcomes: list[Any] = []

    def cancel() -> None:
        messages = fasti.client.messages.Messages(client.transport, "jobs", "slow")
        outcomes.append(messages.cancel(key="k1").status)

    thread = threading.Thread(target=cancel)
    thread.start()
    assert doorway.held.acquire(timeout=60)
    stopping = threading.Thread(target=doorway.door.stop)
    stopping.start()
    doorway.go_on.set()
    thread.join(60)
    assert outcomes == ["ok"]
    # Idle streams don't keep it from ending.
    stopping.join(60)
    assert not stopping.is_alive()


def test_what_a_stopping_broker_refuses_is_told(doorway: Doorway, client: fasti.Client) -> None:
    warm(doorway, client)
    doorway.service.stopping = True
    client.transport.timeout_s = 0.3
    for _ in range(3):
        # Until then another broker might have been there.
        with pytest.raises(Unavailable, match="stopping"):
            client.messages("jobs").cancel(key="k1")
    client.transport.timeout_s = 30.0
    doorway.service.stopping = False
    assert client.messages("jobs").cancel(key="k1").ok


def test_an_older_broker_has_no_such_streams(
    doorway: Doorway, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise fasti.errors.InvalidArgument("the call must be 'consume' here", field="call")

    monkeypatch.setattr(doorway.service, "call_stream", refuse)
    for number in range(10):
        assert client.messages("jobs").cancel(key=f"k{number}").ok
    assert open_streams(doorway) == 0


def test_a_closed_client_refuses_calls_and_leaves_no_stream(doorway: Doorway) -> None:
    client = fasti.connect(doorway.address)
    client.create_topic("jobs")
    warm(doorway, client)
    messages = client.messages("jobs")
    client.close()
    eventually(lambda: open_streams(doorway) == 0)
    with pytest.raises(fasti.errors.Closed):
        messages.count()


@pytest.mark.one_shard
def test_a_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("jobs")
            client.producer("jobs").send_batch([b"x"] * 9, key=list("abcdefghi"), delay="1h")
            jobs = client.messages("jobs")
            transport = client.transport
            assert isinstance(transport, FlightTransport)
            eventually(lambda: jobs.count() and transport._call_streams._idle)
            transport.timeout_s = 1.0
            broker.kill()
            # No broker came in time. Whether the one that died had got it may be known here, or not.
            with pytest.raises((Unavailable, OutcomeUnknown)):
                jobs.cancel(key="a")
            transport.timeout_s = 30.0
            broker.start()
            assert jobs.count()["scheduled"] == 9
            assert [jobs.cancel(key=key).status for key in "abcdefghi"] == ["ok"] * 9


def test_asyncio_has_them_too(doorway: Doorway) -> None:
    async def story() -> None:
        async with await fasti.aio.connect(doorway.address) as client:
            await client.create_topic("jobs")
            async with client.producer("jobs") as producer:
                await producer.send_batch([b"x"] * 20, key=[f"k{n}" for n in range(20)], delay="1h")
            jobs = client.messages("jobs")
            outcomes = [await jobs.cancel(key=f"k{n}") for n in range(10)]
            outcomes += await asyncio.gather(*(jobs.cancel(key=f"k{n}") for n in range(10, 20)))
            assert [outcome.status for outcome in outcomes] == ["ok"] * 20

    asyncio.run(story())
    assert doorway.streams >= 1
