from __future__ import annotations

import pytest

from fasti.client.address import parse_address
from fasti.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "hosts", "tls"),
    [
        ("fasti://127.0.0.1:7170", (("127.0.0.1", 7170),), False),
        ("one:1,two:2", (("one", 1), ("two", 2)), False),
        ("fasti+tls://broker", (("broker", 7170),), True),
        ("fasti://[::1]:9,[::2]", (("::1", 9), ("::2", 7170)), False),
    ],
)
def test_addresses_of_brokers(text: str, hosts: object, tls: bool) -> None:
    found = parse_address(text)
    assert (found.hosts, found.tls, found.directory) == (hosts, tls, None)
    assert parse_address(str(found)) == found


def test_a_directory_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("embedded:./data").directory == "./data"
    monkeypatch.setenv("FASTI_ADDRESS", "elsewhere:5")
    assert parse_address(None).hosts == (("elsewhere", 5),)
    monkeypatch.delenv("FASTI_ADDRESS")
    assert parse_address(None).hosts == (("127.0.0.1", 7170),)


@pytest.mark.parametrize(
    "text", ["http://x:1", "fasti://", "embedded:", "x:0", "x:70000", "x:port", "a@b:1", "[::1:5"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_address(text)
    assert refused.value.field == "address"
