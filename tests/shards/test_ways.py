"""A client of two processes, each with some shards: it asks the right one, follows what moves, and finds
a process again that comes back at another address.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.host import Host
from fasti.broker.shard_map import ShardMap
from fasti.client.flight_transport import FlightTransport
from fasti.client.shards.shard_transport import ShardTransport
from fasti.client.shards.transport import ShardedTransport
from fasti.doors.flight import FlightDoor
from fasti.errors import (
    Closed,
    FastiError,
    NoQuorum,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
)
from tests.shards.shards_rig import close_host, open_host

SHARDS = 4


class Process:
    """Some shards of a directory behind a door."""

    def __init__(self, path: Path, numbers: list[int]) -> None:
        self.host: Host = open_host(path, SHARDS, numbers=numbers)
        self.numbers = numbers
        self.door = FlightDoor(self.host)
        self.stopped = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.door.port}"

    def reopen_door(self) -> None:
        """At another address."""
        old, self.door = self.door, FlightDoor(self.host)
        old.stop()

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.host.begin_stopping()
            self.door.stop()
            close_host(self.host)


class Two:
    """Both, who know where the other is."""

    def __init__(self, path: Path) -> None:
        self.processes = [Process(path, [0, 2]), Process(path, [1, 3])]
        self.introduce(1)

    def introduce(self, epoch: int) -> None:
        """Each learns where the other's shards are."""
        for process, other in (self.processes, self.processes[::-1]):
            there: dict[int, str | None] = dict.fromkeys(other.numbers, other.address)
            process.host.map = ShardMap(there, epoch)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path / "data")
    yield made
    for process in made.processes:
        process.stop()


@pytest.fixture
def client(two: Two) -> Iterator[fasti.Client]:
    with fasti.connect(f"fasti://{two.processes[0].address}", timeout="10s") as made:
        yield made


def ways(client: fasti.Client) -> list[ShardTransport]:
    assert isinstance(client.transport, ShardedTransport)
    found: Any = [client.transport.shard(number) for number in range(SHARDS)]
    return list(found)


def process_of(client: fasti.Client, shard: int) -> FlightTransport:
    way = ways(client)[shard]
    return way._process(way._processes.map.place(shard))


def feeds(client: fasti.Client) -> list[str]:
    """The names of the shards that answer, in order."""
    replies = [way.call("feed", {})[0] for way in ways(client)]
    return [str(reply["shard"]).partition(".")[0] for reply in replies]


def test_every_shard_is_asked_in_its_process_by_one_connection_each(
    two: Two, client: fasti.Client
) -> None:
    assert client.transport.shard_count == SHARDS
    assert feeds(client) == ["0", "1", "2", "3"]
    assert process_of(client, 0) is process_of(client, 2)
    assert process_of(client, 1) is process_of(client, 3)
    assert process_of(client, 0) is not process_of(client, 1)
    assert [str(number) for number in range(SHARDS)] == feeds(client)


def test_the_clock_is_the_lowest_and_that_of_each_process_is_known(client: fasti.Client) -> None:
    shown = [way.clock.now_us() for way in ways(client)]
    assert all(shown)
    before = min(way.clock.now_us() for way in ways(client))
    assert before <= client.clock.now_us() <= max(way.clock.now_us() for way in ways(client))


def test_one_that_starts_with_any_process_comes_to_all(two: Two) -> None:
    with fasti.connect(f"fasti://{two.processes[1].address}") as client:
        assert feeds(client) == ["0", "1", "2", "3"]
    with fasti.connect(f"fasti://127.0.0.1:1,{two.processes[1].address}") as client:
        assert feeds(client) == ["0", "1", "2", "3"]


def test_a_wrong_map_is_put_right_by_the_first_call(two: Two, client: fasti.Client) -> None:
    known = ways(client)[0]._processes.map
    for shard in range(SHARDS):
        wrong = two.processes[1 - shard % 2].address
        known.take_move({"shard": shard, "address": wrong, "epoch": 1}, shard)
    assert feeds(client) == ["0", "1", "2", "3"]


def test_a_process_that_comes_back_elsewhere_is_found_by_the_others(
    two: Two, client: fasti.Client
) -> None:
    assert feeds(client) == ["0", "1", "2", "3"]
    two.processes[1].reopen_door()
    two.introduce(2)
    assert feeds(client) == ["0", "1", "2", "3"]


def test_the_entry_itself_may_come_back_elsewhere(two: Two, client: fasti.Client) -> None:
    assert feeds(client) == ["0", "1", "2", "3"]
    two.processes[0].reopen_door()
    two.introduce(2)
    assert feeds(client) == ["0", "1", "2", "3"]


def test_streams_that_are_opened_at_the_wrong_process_end_as_lost_ones_and_come_right(
    two: Two, client: fasti.Client
) -> None:
    way = ways(client)[1]
    known = way._processes.map
    known.take_move({"shard": 1, "address": two.processes[0].address, "epoch": 1}, 1)
    ended: list[Any] = []
    import threading

    over = threading.Event()

    def end(error: Any) -> None:
        ended.append(error)
        over.set()

    descriptor = {"call": "changes", "shard": "", "after": None}
    try:
        way.consume(descriptor, lambda header, content: None, end)
    except Unavailable as error:
        end(error)
    assert over.wait(20)
    assert isinstance(ended[0], Unavailable)
    assert known.place(1).host == ("127.0.0.1", two.processes[1].door.port)
    way.consume(descriptor, lambda header, content: None, lambda error: None).cancel()


def test_a_shard_that_is_away_is_named_and_the_others_answer(
    two: Two, client: fasti.Client
) -> None:
    two.processes[1].stop()
    assert ways(client)[2].call("feed", {})[0]["shard"].startswith("2.")
    with pytest.raises(Unavailable, match="shard 1"):
        client.transport.call("checkpoint", {}, timeout=2.0)
    health = client.health()
    assert not health["ready"]
    assert [each["ready"] for each in health["processes"]] == [True, False]


def test_a_closed_client_asks_nobody(two: Two) -> None:
    client = fasti.connect(f"fasti://{two.processes[0].address}")
    way = ways(client)[1]
    client.close()
    with pytest.raises(Closed):
        way.call("feed", {})


@pytest.mark.parametrize(
    "error",
    [
        TimedOut("no answer"),
        NoQuorum("too few NATS servers answer"),
        OutcomeUnknown("storage failed"),
        Unavailable("the broker is silent"),
    ],
)
def test_a_stream_whose_process_hangs_or_has_lost_its_storage_is_opened_at_the_next_leader(
    two: Two, client: fasti.Client, error: FastiError
) -> None:
    """It says nothing of a new leader: it doesn't know. The other process does."""
    way = ways(client)[1]
    assert process_of(client, 1).address.hosts[0][1] == two.processes[1].door.port

    def fail(process: FlightTransport) -> Any:
        raise error

    # Here the other one leads it by now.
    two.processes[0].host.map.note(1, 2, two.processes[0].address)
    if isinstance(error, TimedOut | Unavailable):
        with pytest.raises(Unavailable):
            way._open(fail)
    else:
        # It comes as a receipt, or as the end of a session.
        way._ending(lambda _: None)(error)
        way._open(lambda process: None)
    assert process_of(client, 1).address.hosts[0][1] == two.processes[0].door.port
