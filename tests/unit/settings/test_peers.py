"""Which process has which shards: how it is written, dealt out, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from fasti.core import layout
from fasti.errors import InvalidArgument
from fasti.settings import peers as module
from fasti.settings.load import load
from fasti.settings.page import as_toml
from fasti.settings.peers import PeerMap, Peers, ShardNumbers, deal_out, show_shards
from fasti.settings.values import Address

TWO = "0-1=127.0.0.1:7170,2-3=127.0.0.1:7171"


def faults(**flags: Any) -> list[str]:
    with pytest.raises(InvalidArgument) as refused:
        load(flags, {})
    texts: list[str] = refused.value.details["faults"]
    return texts


def test_settings_and_layouts_allow_as_many_shards() -> None:
    assert module.SHARDS_MAX == layout.SHARDS_MAX


def test_nothing_is_said_of_shards_by_default() -> None:
    settings = load(environment={})
    assert (settings.shards, settings.processes) == (None, 1)
    assert (settings.peers, settings.serve_shards) == (None, None)


@pytest.mark.parametrize("text", ["0", "0-3", "0,2-4,9"])
def test_numbers_of_shards_are_read_as_they_are_shown(text: str) -> None:
    assert ShardNumbers().show(ShardNumbers().read(text)) == text


def test_numbers_of_shards_may_come_in_any_order() -> None:
    assert ShardNumbers().read(" 3 , 0 - 1") == (0, 1, 3)
    assert ShardNumbers().read(2) == (2,)


@pytest.mark.parametrize("raw", ["", "a", "1-", "3-1", "1,1", "0-2,2", "256", True, None, 1.5])
def test_what_is_no_number_of_shards(raw: Any) -> None:
    with pytest.raises(ValueError, match=r"shard|run"):
        ShardNumbers().read(raw)


@pytest.mark.parametrize("text", [TWO, "0+2=[::1]:7170,1=broker:7171", "0=127.0.0.1:7170"])
def test_a_map_is_read_as_it_is_shown(text: str) -> None:
    assert Peers().show(Peers().read(text)) == text


def test_the_process_of_shard_0_comes_first() -> None:
    peers = Peers().read("2-3=b:2, 0-1=a:1")
    assert [place.first for place in peers.processes] == [0, 2]
    assert peers.shards == 4
    assert peers.place_of(3).address == Address("b", 2)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "not a map"),
        (7, "not a map"),
        ("127.0.0.1:7170", "should be SHARDS=HOST:PORT"),
        ("0=a:1,2=b:2", "shard 1 is missing"),
        ("1=a:1", "shard 0 is missing"),
        ("0-1=a:1,1=b:2", "shard 1 is in it twice"),
        ("0=a:1,1=a:1", "a:1 is in it twice"),
        ("0=a", "not an address"),
        ("0=0.0.0.0:7170", "can connect to"),
        ("0=a:0", "can connect to"),
        ("0-400=a:1", "below 256"),
    ],
)
def test_what_is_no_map(raw: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Peers().read(raw)


@pytest.mark.parametrize(("shards", "processes"), [(1, 1), (4, 2), (7, 3), (256, 256), (5, 4)])
def test_shards_are_dealt_out_evenly(shards: int, processes: int) -> None:
    peers = deal_out(shards, [Address("a", 1 + number) for number in range(processes)])
    counts = [len(place.shards) for place in peers.processes]
    assert max(counts) - min(counts) <= 1
    assert [shard for place in peers.processes for shard in place.shards] == list(range(shards))
    assert Peers().read(str(peers)) == peers


def test_runs_are_shown_as_such() -> None:
    assert show_shards([4, 0, 1, 2, 6]) == "0-2,4,6"


def test_a_process_knows_its_shards_by_its_address() -> None:
    assert load({"peers": TWO}, {}).serve_shards == (0, 1)
    settings = load({"peers": TWO, "listen": "127.0.0.1:7171"}, {})
    assert settings.serve_shards == (2, 3)
    assert settings.shards == 4
    told = {"advertise": "127.0.0.1:7171", "listen": "0.0.0.0:9", "insecure": True}
    assert load({"peers": TWO, **told}, {}).serve_shards == (2, 3)


def test_a_process_may_be_told_its_shards() -> None:
    settings = load({"peers": TWO, "listen": "127.0.0.1:9", "serve_shards": "2-3"}, {})
    assert settings.serve_shards == (2, 3)
    assert settings.peers == PeerMap(Peers().read(TWO).processes)


def test_a_map_survives_its_settings_file(tmp_path: Any) -> None:
    path = tmp_path / "fasti.toml"
    path.write_text(as_toml(load({"peers": TWO, "serve_shards": "2-3"}, {})))
    again = load({}, {}, path)
    assert (again.serve_shards, str(again.peers)) == ((2, 3), TWO)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"processes": 4, "shards": 2}, "a process needs a shard"),
        ({"shards": 0}, "less than 1"),
        ({"shards": 257}, "more than 256"),
        ({"serve_shards": "0"}, "peers isn't"),
        ({"peers": TWO, "processes": 2}, "give either them or processes"),
        ({"peers": TWO, "shards": 3}, "peers have 4 shards, and shards is 3"),
        ({"peers": TWO, "listen": "127.0.0.1:9"}, "say by serve_shards"),
        ({"peers": TWO, "serve_shards": "0-2"}, "just the shards 0-2"),
        ({"processes": 16, "shards": 16}, "http is 127.0.0.1:7180"),
        ({"processes": 4, "shards": 4, "listen": "127.0.0.1:65533"}, "up to 65536"),
        (
            {"processes": 2, "shards": 2, "listen": "127.0.0.1:0", "advertise": "a:1"},
            "the port of listen must be given",
        ),
        (
            {"processes": 2, "shards": 2, "listen": "0.0.0.0:7170", "insecure": True},
            "give advertise",
        ),
    ],
)
def test_contradictions(flags: dict[str, Any], reason: str) -> None:
    (found,) = faults(**flags)
    assert reason in found
    assert found.startswith("flag --")


def test_any_free_ports_collide_with_none() -> None:
    assert load({"processes": 4, "shards": 4, "listen": "127.0.0.1:0"}, {}).processes == 4
