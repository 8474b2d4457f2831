"""Readers connect where the endpoints of a plan say: two brokers, one of which plans for the other."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import fasti
from fasti.client.flight_transport import FlightTransport
from fasti.client.transport import LOCATION
from fasti.doors.flight import FlightDoor
from fasti.errors import Closed, Unavailable
from fasti.testing import VirtualBroker


class Brokers(NamedTuple):
    here: VirtualBroker
    there: VirtualBroker
    door: FlightDoor
    far_door: FlightDoor

    @property
    def address(self) -> str:
        return f"fasti://127.0.0.1:{self.door.port}"

    @property
    def location(self) -> str:
        return f"grpc+tcp://127.0.0.2:{self.far_door.port}"


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """Both have a log of one row; that of the far one is read by the plans of the near one."""
    with VirtualBroker() as here, VirtualBroker() as there:
        for broker, row in ((here, b"here"), (there, b"there")):
            client = broker.client()
            client.create_topic("rows", kind="log")
            client.producer("rows").send(row).result()
        far = FlightDoor(there.service, "127.0.0.2")
        near = FlightDoor(here.service, advertise=f"127.0.0.2:{far.port}")
        yield Brokers(here, there, near, far)
        near.stop()
        far.stop()


def transport_of(client: fasti.Client) -> FlightTransport:
    assert isinstance(client.transport, FlightTransport)
    return client.transport


def test_a_ticket_is_read_where_its_endpoint_says(brokers: Brokers) -> None:
    with fasti.connect(brokers.address) as client:
        (ticket,) = client.transport.plan({"call": "log", "topic": "rows"})
        assert ticket[LOCATION] == brokers.location
        (batch,) = client.transport.read(ticket)
        assert batch.column("payload").to_pylist() == [b"there"]
        del ticket[LOCATION]
        (batch,) = client.transport.read(ticket)
        assert batch.column("payload").to_pylist() == [b"here"]


def test_a_reader_follows_and_comes_back_when_that_broker_is_gone(brokers: Brokers) -> None:
    with fasti.connect(brokers.address) as client:
        with client.reader("rows", follow=False) as reader:
            assert [bytes(row.payload) for row in reader] == [b"there"]
        brokers.far_door.stop()
        with client.reader("rows", follow=False) as reader:
            assert [bytes(row.payload) for row in reader] == [b"here"]


def test_an_address_has_one_transport_with_a_clock_of_its_own(brokers: Brokers) -> None:
    with fasti.connect(brokers.address) as client:
        transport = transport_of(client)
        other = transport.at(brokers.location)
        assert other is transport.at(brokers.location)
        assert transport.at(None) is transport
        assert transport.at(f"grpc+tcp://127.0.0.1:{brokers.door.port}") is transport
        brokers.there.advance("1h")
        other.sample_clock()
        apart_us = other.estimate.now_us() - transport.estimate.now_us()
        assert apart_us > 3_500_000_000
        for none in (
            "grpc+tcp://",
            "grpc+tcp://host",
            "grpc+tcp://host:port",
            "grpc+tcp://host:99999",
        ):
            with pytest.raises(Unavailable, match="names an address that is none"):
                transport.at(none)
    with pytest.raises(Closed):
        other.sample_clock()
    with pytest.raises(Closed):
        transport.at(brokers.location)


def test_of_many_addresses_the_latest_and_those_in_use_have_a_transport(brokers: Brokers) -> None:
    """Brokers come and go for months; who has a transport in hands can go on with it."""
    with fasti.connect(brokers.address) as client:
        transport = transport_of(client)
        used = transport.at(brokers.location)
        for port in range(20_000, 20_100):
            transport.at(f"grpc+tcp://127.0.0.3:{port}")
        gc.collect()
        alive = [str(peer) for peer in transport._peers._alive.values()]
        assert len(alive) == 17
        assert "fasti://127.0.0.3:20099" in alive
        assert transport.at(brokers.location) is used
    with pytest.raises(Closed):
        used.sample_clock()


def test_a_broker_that_advertises_nothing_is_read_where_it_was_asked(brokers: Brokers) -> None:
    with fasti.connect(f"fasti://127.0.0.2:{brokers.far_door.port}") as client:
        (ticket,) = client.transport.plan({"call": "log", "topic": "rows"})
        assert LOCATION not in ticket
