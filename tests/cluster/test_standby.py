"""A standby on real servers: it follows over checkpoints and trims, and a shard is opened on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection
from fasti.cluster.nats_socket import StreamMessage, StreamReads
from fasti.cluster.standby import Standby
from fasti.cluster.stream_journal import StreamJournal
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.errors import Corruption, Fenced, NoQuorum
from fasti.storage.follower import Follower
from fasti.storage.frames import StoredFrame
from tests.cluster.nats_rig import new_cluster, wait_until
from tests.cluster.stream_rig import PATIENT
from tests.cluster.test_stream_storage import SMALL, lease_and_ack, open_shard
from tests.integration.shard_rig import SETTINGS, make_topic, produce, shown


@pytest.fixture
def settings(nats: NatsConnection, tmp_path: Path) -> Iterator[StreamSettings]:
    name = new_cluster()
    yield StreamSettings(name, **SMALL, grace_s=0, timeouts=PATIENT)
    for kind in "jbp":
        nats.delete_stream(f"{name}-{kind}-0")


def lead(nats: NatsConnection, settings: StreamSettings, broker: str) -> Shard:
    return Shard(StreamStorage(nats, settings, 0, broker, f"{broker}:1"), SETTINGS)


def stand_by(nats: NatsConnection, settings: StreamSettings, broker: str) -> Standby:
    def make_engine() -> Engine:
        return Engine(SETTINGS.memory_bytes, SETTINGS.leases_max, SETTINGS.limits)

    return Standby(0, StreamStorage(nats, settings, 0, broker, f"{broker}:1"), make_engine)


def place(shard: Shard) -> int:
    journal = shard.store.journal
    assert isinstance(journal, StreamJournal)
    return journal.stream_sequence


def catch_up(standby: Standby, shard: Shard) -> None:
    """As by the leader's beat."""
    standby.hear(place(shard), shard.store.version)

    def caught_up() -> bool:
        standby.step()
        return standby.sequence == place(shard) and not standby.hear(0, 0)

    wait_until(caught_up, "a standby that has caught up")


def take_over(standby: Standby) -> Shard:
    return Shard(standby.hand_over(), SETTINGS)


def counts(engine: Engine) -> dict[str, list[int]]:
    return {
        topic.name: [partition.counts[1:].tolist() for partition in topic.partitions]
        for topic in engine.state.topics.values()
    }


def test_a_standby_is_as_far_as_its_leader_over_checkpoints_and_trims(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    expected: dict[int, bytes] = {}
    for round_number in range(5):
        payloads = [b"%d of round %d" % (number, round_number) * 20 for number in range(100)]
        expected |= zip(produce(shard, *payloads), payloads, strict=True)
        catch_up(standby, shard)
        for id_ in lease_and_ack(shard, 30):
            del expected[id_]
        catch_up(standby, shard)
        # With no grace at all: whatever is out of force is gone when it returns.
        shard.checkpoint()
        catch_up(standby, shard)
        assert standby.engine is not None
        assert counts(standby.engine) == counts(shard.engine)
    assert (standby.loads, standby.installs) == (1, 5)
    first = nats.stream_state(f"{settings.cluster}-j-0").first_sequence  # type: ignore[union-attr]
    assert first > 5, "the leader has trimmed what the standby has read"
    engine = standby.engine
    other = take_over(standby)
    assert other.engine is engine
    assert other.store.replayed == 0
    assert shown(other) == expected
    # What it goes on with is stored as by any leader.
    for id_ in lease_and_ack(other, 20):
        del expected[id_]
    other.checkpoint()
    other.close(checkpoint=False)
    shard.close(checkpoint=False)
    third = open_shard(nats, settings, "third")
    assert shown(third) == expected
    third.close(checkpoint=False)


def test_what_came_since_and_the_newest_manifest_are_read_by_the_take_over(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, replace(settings, grace_s=60), "first")
    make_topic(shard)
    ids = produce(shard, *[b"%d" % number for number in range(50)])
    shard.checkpoint()
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    ids += produce(shard, b"since")
    frames = shard.store.journal.last_sequence
    shard.checkpoint()
    other = take_over(standby)
    assert other.store.replayed == 1
    assert frames > 1
    assert list(shown(other)) == sorted(ids)
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


def test_a_standby_that_sleeps_over_a_trim_begins_anew(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    produce(shard, b"one")
    catch_up(standby, shard)
    ids = produce(shard, b"two", b"three")
    for _ in range(3):
        shard.checkpoint()
        ids += produce(shard, b"more")
    catch_up(standby, shard)
    assert standby.loads == 2
    other = take_over(standby)
    assert set(ids) < set(shown(other))
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


@pytest.mark.parametrize("error", [Corruption("bad", file="journal", offset=1), KeyError("fault")])
def test_what_can_not_be_right_makes_a_standby_begin_anew(
    nats: NatsConnection,
    settings: StreamSettings,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    ids = produce(shard, b"one")
    catch_up(standby, shard)
    apply = Follower.apply

    def fail(follower: Follower, frame: StoredFrame) -> None:
        monkeypatch.setattr(Follower, "apply", apply)
        raise error

    monkeypatch.setattr(Follower, "apply", fail)
    ids += produce(shard, b"two")
    catch_up(standby, shard)
    assert standby.loads == 2
    other = take_over(standby)
    assert list(shown(other)) == ids
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


def test_a_manifest_that_was_only_half_installed_is_not_gone_on_with(
    nats: NatsConnection, settings: StreamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    ids = produce(shard, *[b"%d" % number for number in range(20)])
    catch_up(standby, shard)
    install = Follower._install_block

    def fail(follower: Follower, *given: Any) -> None:
        install(follower, *given)
        monkeypatch.setattr(Follower, "_install_block", install)
        raise NoQuorum("the servers are away")

    monkeypatch.setattr(Follower, "_install_block", fail)
    shard.checkpoint()
    catch_up(standby, shard)
    assert standby.loads == 2
    other = take_over(standby)
    other.checkpoint()
    other.close(checkpoint=False)
    shard.close(checkpoint=False)
    third = open_shard(nats, settings, "third")
    assert list(shown(third)) == ids
    third.close(checkpoint=False)


def test_a_standby_that_slept_over_a_trim_is_no_reason_to_skip_anything(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    """It takes over before it noticed: then all is read, as if there were no standby."""
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    ids = produce(shard, b"one")
    catch_up(standby, shard)
    engine = standby.engine
    for _ in range(3):
        ids += produce(shard, b"more")
        shard.checkpoint()
    other = take_over(standby)
    assert other.engine is not engine
    assert list(shown(other)) == sorted(ids)
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


def test_who_was_beaten_follows_again(nats: NatsConnection, settings: StreamSettings) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    ids = produce(shard, b"one")
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    storage = standby.hand_over()
    streams, _ = storage.followed or pytest.fail("it is warm")
    publish = streams.stream.publish

    def beaten(message: bytes, expected_last: int, timeout_s: float) -> int:
        streams.stream.publish = publish  # type: ignore[method-assign]
        rivals.append(lead(nats, settings, "third"))
        return publish(message, expected_last, timeout_s)

    rivals: list[Shard] = []
    streams.stream.publish = beaten  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="first with epoch"):
        Shard(storage, SETTINGS)
    standby.take_back()
    (rival,) = rivals
    ids += produce(rival, b"two")
    catch_up(standby, rival)
    assert standby.loads == 1
    other = take_over(standby)
    assert list(shown(other)) == sorted(ids)
    assert other.store.replayed == 0
    for led in (other, rival, shard):
        led.close(checkpoint=False)


def test_who_led_for_a_moment_and_could_not_load_may_lead_later(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    ids = produce(shard, b"one")
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    # It leads, and its servers don't answer while it loads.
    standby.hand_over().open(SETTINGS).journal.close()
    standby.take_back()
    rival = lead(nats, settings, "third")
    ids += produce(rival, b"two")
    catch_up(standby, rival)
    other = take_over(standby)
    assert list(shown(other)) == sorted(ids)
    for led in (other, rival, shard):
        led.close(checkpoint=False)


def test_a_leader_says_in_the_stream_to_whom_it_yields(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    ids = produce(shard, b"one")
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    assert standby.yielded is None
    epoch = shard.store.journal.epoch
    shard.store.storage.heir = "second"  # type: ignore[attr-defined]
    shard.close(checkpoint=False)
    standby.hurry()
    wait_until(lambda: standby.step() is None and standby.yielded, "the leader's last word")
    assert standby.yielded == (epoch, "second")
    other = take_over(standby)
    assert list(shown(other)) == ids
    assert other.call(co.Cancel("t", co.Target(ids=np.array(ids))), 10).all_ok
    other.close(checkpoint=False)


def test_a_standby_that_is_behind_reads_every_pack_once(
    nats: NatsConnection, settings: StreamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    begin = place(shard)
    for number in range(24):
        produce(shard, random.Random(number).randbytes(1 << 20))
    places: list[int] = []
    read = StreamReads.read

    def reading(reads: StreamReads, *place: Any) -> list[StreamMessage]:
        found = read(reads, *place)
        places.extend(message.sequence for message in found)
        return found

    monkeypatch.setattr(StreamReads, "read", reading)
    monkeypatch.setattr(nats, "get", None)
    catch_up(standby, shard)
    shard.close(checkpoint=False)
    assert places == list(range(begin + 1, place(shard) + 1))


def test_a_take_over_that_failed_can_be_tried_again_after_another_has_led(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    ids = produce(shard, b"one", b"two")
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    # It leads, and fails before it serves.
    opened = standby.hand_over().open(SETTINGS)
    opened.journal.close()
    standby.take_back()
    third = lead(nats, settings, "third")
    ids += produce(third, b"three")
    catch_up(standby, third)
    again = take_over(standby)
    assert set(shown(again)) == set(ids)
    for each in (again, third, shard):
        each.close(checkpoint=False)
