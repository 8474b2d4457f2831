"""The settings of a broker in a cluster: names, addresses, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from fasti.errors import InvalidArgument
from fasti.settings.cluster import NatsUrls, Weight, Word
from fasti.settings.load import load
from fasti.settings.page import as_toml

CLUSTER: dict[str, Any] = {"cluster": "c", "nats": "nats://127.0.0.1:4222"}


def faults(**flags: Any) -> list[str]:
    with pytest.raises(InvalidArgument) as refused:
        load(flags, {})
    texts: list[str] = refused.value.details["faults"]
    return texts


def test_a_broker_is_in_no_cluster_by_default() -> None:
    settings = load(environment={})
    assert (settings.cluster, settings.nats, settings.broker_name) == (None, None, None)
    assert settings.weight == 1.0
    assert settings.standbys == 1


def test_how_many_stand_by() -> None:
    for text, count in [("0", 0), ("2", 2)]:
        assert load({**CLUSTER, "standbys": text}, {}).standbys == count
    assert "more than 2" in "".join(faults(**CLUSTER, standbys="3"))


@pytest.mark.parametrize("name", ["a", "Orders_2-eu", "x" * 64])
def test_names(name: str) -> None:
    assert Word().show(Word().read(name)) == name


@pytest.mark.parametrize("raw", ["", "a.b", "a b", "*", ">", "x" * 65, "é", "a\n", 7, None])
def test_what_is_no_name(raw: Any) -> None:
    with pytest.raises(ValueError, match="is not a name of letters"):
        Word().read(raw)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("127.0.0.1:4222", ("nats://127.0.0.1:4222",)),
        ("nats://a:1, tls://b:2", ("nats://a:1", "tls://b:2")),
        ("nats://a", ("nats://a",)),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
    ],
)
def test_addresses_of_servers(text: str, urls: tuple[str, ...]) -> None:
    assert NatsUrls().read(text) == urls
    assert NatsUrls().read(NatsUrls().show(urls)) == urls


@pytest.mark.parametrize(
    "raw", ["", ",", "http://a:1", "nats://", "nats://a:b", "nats://a:0", "nats://a:70000", 7, None]
)
def test_what_is_no_address_of_a_server(raw: Any) -> None:
    with pytest.raises(ValueError, match="is not an address of NATS"):
        NatsUrls().read(raw)


@pytest.mark.parametrize(("raw", "weight"), [("1", 1.0), (0, 0.0), ("0.5", 0.5), (2.5, 2.5)])
def test_weights(raw: Any, weight: float) -> None:
    assert Weight().read(raw) == weight
    assert Weight().read(Weight().show(weight)) == weight


@pytest.mark.parametrize("raw", ["", "-1", -0.1, 1001, "nan", "inf", "a", True, None, [1]])
def test_what_is_no_weight(raw: Any) -> None:
    with pytest.raises(ValueError, match="is not a number from 0 to 1000"):
        Weight().read(raw)


def test_a_cluster_survives_its_settings_file(tmp_path: Any) -> None:
    path = tmp_path / "fasti.toml"
    path.write_text(as_toml(load({**CLUSTER, "broker_name": "b", "shards": 4, "weight": "2"}, {})))
    assert "weight = 2  #" in path.read_text()
    again = load({}, {}, path)
    assert again.weight == 2.0
    assert (again.cluster, again.broker_name, again.shards) == ("c", "b", 4)
    assert again.nats == ("nats://127.0.0.1:4222",)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"cluster": "c"}, "cluster is given but nats isn't"),
        ({"nats": "a:1"}, "nats is given but cluster isn't"),
        ({"broker_name": "b"}, "broker_name is given but cluster isn't"),
        ({**CLUSTER, "shards": 1}, "at least 2 shards"),
        (
            {**CLUSTER, "processes": 2, "shards": 2},
            "processes is for brokers on one data directory",
        ),
        ({**CLUSTER, "clone": True}, "clone is for brokers on one data directory"),
        ({**CLUSTER, "listen": "0.0.0.0:7170", "insecure": True}, "give advertise"),
    ],
)
def test_contradictions(flags: dict[str, Any], reason: str) -> None:
    (found,) = faults(**flags)
    assert reason in found


def test_an_advertised_address_is_what_clients_are_told() -> None:
    everywhere = {"listen": "0.0.0.0:7170", "insecure": True, "advertise": "broker:7170"}
    assert str(load({**CLUSTER, **everywhere}, {}).advertise) == "broker:7170"
