"""When a message is due has the same three names everywhere: at, delay, due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fasti
from fasti.client.durations import moment_us
from fasti.errors import InvalidArgument
from fasti.testing.virtual import VirtualBroker

AT = datetime(2031, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
AT_US = moment_us(AT)
Call = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as found:
        yield found


@pytest.fixture
def client(broker: VirtualBroker) -> Iterator[fasti.Client]:
    with broker.client() as found:
        found.create_topic("t", lookahead=0)
        yield found


def pending(client: fasti.Client) -> dict[str, Any]:
    return dict(client.messages("t").get(key="k"))


def leased(client: fasti.Client) -> fasti.Message:
    client.producer("t").send(b"", key="k").result(20)
    message = next(client.consumer("t", timeout=20))
    assert message.key == "k"
    return message


def of_send(client: fasti.Client, **when: Any) -> None:
    client.producer("t").send(b"", key="k", **when).result(20)


def of_send_batch(client: fasti.Client, **when: Any) -> None:
    assert client.producer("t").send_batch([b""], key=["k"], **when).all_ok


def of_send_in_transaction(client: fasti.Client, **when: Any) -> None:
    with client.transaction() as tx:
        tx.send("t", b"", key="k", **when)


def of_move(client: fasti.Client, **when: Any) -> None:
    client.producer("t").send(b"", key="k", delay="1d").result(20)
    assert client.messages("t").move(key="k", **when).ok


def of_move_in_transaction(client: fasti.Client, **when: Any) -> None:
    client.producer("t").send(b"", key="k", delay="1d").result(20)
    with client.transaction() as tx:
        tx.move("t", key="k", **when)


def of_release(client: fasti.Client, **when: Any) -> None:
    assert leased(client).release(**when, wait=True)


def of_release_of_a_batch(client: fasti.Client, **when: Any) -> None:
    client.producer("t").send(b"", key="k").result(20)
    batch = next(client.consumer("t", timeout=20).batches(1))
    assert batch.release(**when, wait=True)


def of_release_in_transaction(client: fasti.Client, **when: Any) -> None:
    message = leased(client)
    with client.transaction() as tx:
        tx.release(message, **when)


def of_redrive(client: fasti.Client, **when: Any) -> None:
    message = leased(client)
    message.reject("why", wait=True)
    assert client.messages("t").redrive(message.id, **when).ok


def of_redrive_by_filter(client: fasti.Client, **when: Any) -> None:
    leased(client).reject("why", wait=True)
    assert client.messages("t").redrive(reason="why", **when).all_ok


def of_later(client: fasti.Client, **when: Any) -> None:
    app = fasti.App(client)
    handler = app.on("t")(_handle)
    handler.later(1, key="k", **when).result(20)


def of_move_of_a_handler(client: fasti.Client, **when: Any) -> None:
    app = fasti.App(client)
    handler = app.on("t")(_handle)
    handler.later(1, key="k", delay="1d").result(20)
    assert handler.move(key="k", **when).ok


def _handle(number: int) -> None: ...


CALLS = [value for name, value in list(globals().items()) if name.startswith("of_")]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", [{"at": AT}, {"due": AT}, {"due": AT_US}])
def test_a_moment(client: fasti.Client, call: Call, when: dict[str, Any]) -> None:
    call(client, **when)
    assert pending(client)["due_us"] == AT_US


@pytest.mark.parametrize("call", CALLS)
def test_a_delay(broker: VirtualBroker, client: fasti.Client, call: Call) -> None:
    call(client, delay=timedelta(hours=2))
    assert pending(client)["due_us"] == moment_us(broker.now + timedelta(hours=2))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("when", "names"),
    [
        ({"at": AT, "delay": "1h"}, ("at", "delay")),
        ({"at": AT, "due": AT_US}, ("at", "due")),
        ({"delay": "1h", "due": AT_US}, ("delay", "due")),
    ],
)
def test_two_are_refused_by_their_names(
    client: fasti.Client, call: Call, when: dict[str, Any], names: tuple[str, str]
) -> None:
    with pytest.raises(InvalidArgument, match=f"either {names[0]} or {names[1]}, not both"):
        call(client, **when)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"at": AT_US}, "aware datetime.*microseconds go into due="),
        ({"at": "tomorrow"}, "at must be an aware datetime"),
        ({"at": datetime(2031, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"due": "tomorrow"}, "due must be an aware datetime or microseconds"),
        ({"due": 1.5}, "due must be an aware datetime or microseconds"),
        ({"due": datetime(2031, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"delay": "soon"}, "delay"),
        ({"delay": AT}, "delay must be a length of time"),
    ],
)
def test_a_wrong_type_says_what_is_expected(
    client: fasti.Client, call: Call, when: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        call(client, **when)


def test_columns_of_moments(client: fasti.Client) -> None:
    producer = client.producer("t")
    later = AT + timedelta(seconds=1)
    columns: list[dict[str, Any]] = [
        {"at": [AT, later]},
        {"at": pa.array([AT, later], pa.timestamp("us", "UTC"))},
        {"due": [AT_US, AT_US + 1_000_000]},
        {"due": np.array([AT_US, AT_US + 1_000_000])},
        {"due": [AT, later]},
    ]
    for given in columns:
        ids = producer.send_batch([b"a", b"b"], **given).ids.tolist()
        found = client.messages("t").get(id=ids).column("due_us").to_pylist()
        assert found == [AT_US, AT_US + 1_000_000]
    for wrong in ([AT_US, AT_US], np.array([AT_US, AT_US]), pa.array([AT_US, AT_US])):
        with pytest.raises(InvalidArgument, match="microseconds go into due="):
            producer.send_batch([b"a", b"b"], at=wrong)
