"""Damaged payloads: whatever byte rots, a message is delivered right or is dead of `corrupt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.log.commands import CreateGroup, DescribeGroups, ListDead
from fasti.errors import StorageFailed
from fasti.model import Outcome
from fasti.storage.files import LocalFiles
from fasti.storage.tools.backup import back_up, directory_source
from fasti.storage.tools.restore import restore
from tests.integration.shard_rig import (
    NOW_US,
    FakeClock,
    SharedFiles,
    int64s,
    make_topic,
    produce,
    serving,
    shown,
)

DAY_US = 86_400_000_000


def payloads_of(count: int) -> list[bytes]:
    return [f"payload number {n:04d} ".encode() * 5 for n in range(count)]


def block_of(files: SharedFiles) -> str:
    (name,) = [name for name in files.list("blocks/") if name.endswith(".payloads")]
    return name


def find(files: SharedFiles, name: str, content: bytes) -> int:
    return bytes(files.open(name, writable=False).map()).index(content)


def received(shard: Shard, count: int) -> dict[int, bytes]:
    """What a consumer gets that wants so many at a time, until everything has ended."""
    session = shard.open_session()
    session.lease("t", "c", count)
    got: dict[int, bytes] = {}
    while sum(counts(shard).get(state, 0) for state in ("ready", "leased")):
        # Short, because nothing comes of a delivery that is lost as a whole.
        delivery = session.receive(0.02)
        if delivery is None:
            continue
        ids = delivery.leased.ids
        got |= zip(ids.tolist(), delivery.payloads.column("payload").to_pylist(), strict=True)
        tokens = int64s(*[delivery.leased.token] * len(ids))
        shard.submit(
            [co.Ack("t", ids, tokens, 0), co.Lease("t", session.number, "c", len(ids))]
        ).result(60)
    session.close()
    return got


def counts(shard: Shard) -> dict[str, int]:
    found: dict[str, int] = shard.call(co.Count("t"), 10).states
    return found


def dead(shard: Shard) -> dict[int, str]:
    page = shard.call(co.List("t", limit=60_000, state="dead"), 10)
    if not len(page.ids):
        return {}
    reasons = [page.names["reason"][number] for number in page.columns["reason"].tolist()]
    return dict(zip(page.ids.tolist(), reasons, strict=True))


def test_a_flipped_bit_costs_the_rows_of_its_piece_and_nobody_else_waits() -> None:
    files, sent = SharedFiles(), payloads_of(1_000)
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *sent)
        shard.checkpoint()
    name = block_of(files)
    files.flip_bit(name, find(files, name, sent[500]) + 20)
    with serving(files, clock=FakeClock()) as shard:
        # One that wants ten at a time would stall if those that died were not made up for.
        got = received(shard, 10)
        lost = dead(shard)
        assert got == {id: sent[n] for n, id in enumerate(ids) if id not in lost}
        assert ids[500] in lost
        assert len(lost) <= 13
        assert set(lost.values()) == {"corrupt"}
        assert shard.damage.corrupt == {"t": len(lost)}
        assert [found.file for found in shard.store.payloads.damages.files()] == [name]
        # They are listed with what is known of them, and their payload is told to be missing.
        assert {payload for id, payload in shown(shard).items() if id in lost} == {None}
        # Nothing can be redriven that can't be read.
        some = int64s(*lost)
        assert set(shard.redrive("t", some).status.tolist()) == {Outcome.DEAD}
        files.flip_bit(name, find(files, name, sent[501]) - len(sent[500]) + 20)
        assert set(shard.redrive("t", some).status.tolist()) == {Outcome.OK}
        assert received(shard, 10) == {id: sent[ids.index(id)] for id in lost}
    with serving(files) as shard:
        assert counts(shard)["dead"] == 0


def test_whatever_byte_of_a_block_rots_messages_come_right_or_are_dead() -> None:
    sent, offset = payloads_of(60), 3
    while True:
        image = SharedFiles()
        with serving(image, clock=FakeClock()) as shard:
            make_topic(shard)
            ids = produce(shard, *sent, key=[f"k{n}" for n in range(60)])
            shard.checkpoint()
        name = block_of(image)
        if offset >= image.open(name, writable=False).size:
            break
        image.flip_bit(name, offset, offset % 8)
        offset += 611
        with serving(image, clock=FakeClock()) as shard:
            got, lost = received(shard, 7), dead(shard)
            assert got == {id: sent[n] for n, id in enumerate(ids) if id not in lost}
            assert len(got) + len(lost) == 60
            # A checkpoint goes on, and a restart finds the same.
            shard.checkpoint()
        with serving(image) as shard:
            assert dead(shard) == lost


def test_a_damaged_frame_of_the_journal_costs_its_own_messages() -> None:
    files, clock = SharedFiles(), FakeClock()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        first = produce(shard, b"a" * 100, b"b" * 100)
        second = produce(shard, b"c" * 100)
        for _ in range(3):
            produce(shard, b"later" * 10, due_us=NOW_US + DAY_US)
        damage_frame(shard, files, b"a" * 100)
        assert received(shard, 5).keys() == set(second)
        assert dead(shard) == dict.fromkeys(first, "corrupt")


def test_a_checkpoint_goes_on_without_a_damaged_frame_and_no_fresh_checksum_hides_it() -> None:
    files, clock = SharedFiles(), FakeClock()
    later = NOW_US + DAY_US
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        lost = produce(shard, b"a" * 100, b"b" * 100, due_us=later, key=["a", "b"])
        # The damaged frame's segment is full, so that it goes when nothing of it is needed.
        good = [produce(shard, b"c" * 40_000, due_us=later)[0] for _ in range(2)]
        damage_frame(shard, files, b"a" * 100)
        shard.checkpoint()
        shard.checkpoint()
        assert shard.housekeeper.failures == 0
        assert dead(shard) == dict.fromkeys(lost, "corrupt")
    with serving(files, clock=clock) as shard:
        assert dead(shard) == dict.fromkeys(lost, "corrupt")
        assert {id: payload for id, payload in shown(shard).items() if id in lost} == dict.fromkeys(
            lost
        )
        assert shown(shard)[good[0]] == b"c" * 40_000
        assert set(shard.redrive("t", int64s(*lost)).status.tolist()) == {Outcome.DEAD}
        # A new payload is as good as a new message; one that is dead has to be produced again.
        clock.advance(shard, DAY_US)
        # Those of that day are read from their block first.
        while counts(shard).get("scheduled", 0):
            clock.advance(shard, 1)
        assert received(shard, 5).keys() == set(good)


def damage_frame(shard: Shard, files: SharedFiles, content: bytes) -> None:
    """Lets a frame rot that the process has written, and no longer has in memory."""
    (name,) = [
        name
        for name in files.list("journal/")
        if name.endswith(".segment") and content in bytes(files.open(name, writable=False).map())
    ]
    files.flip_bit(name, find(files, name, content) + 3)
    shard.store.payloads.forget(in_run=False, wanted=lambda frame: False)


def test_a_lost_block_file_costs_its_messages_only() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        lost = produce(shard, b"a", b"b")
        shard.checkpoint()
        name = block_of(files)
        good = produce(shard, b"c")
        files.delete(name)
        assert received(shard, 5).keys() == set(good)
        assert dead(shard) == dict.fromkeys(lost, "corrupt")


@pytest.fixture
def log() -> Any:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard, kind="log")
        sent = payloads_of(300)
        assert shard.call(co.Produce("t", Rows.of(sent)), 10).all_ok
        shard.checkpoint()
    name = block_of(files)
    files.flip_bit(name, find(files, name, sent[100]) + 20)
    return files, sent


def test_a_group_of_a_log_goes_on_behind_a_damaged_row(log: Any) -> None:
    files, sent = log
    with serving(files, clock=FakeClock()) as shard:
        assert shard.call(CreateGroup("t", "g", -1), 10).error is None
        session = shard.open_session()
        session.consumer = "c"
        shard.call(co.Lease("t", session.number, "c", 20, group="g"), 10)
        got: dict[int, bytes] = {}
        while shard.call(DescribeGroups("t", "g"), 10).value[0]["partitions"][0]["lag"]:
            delivery = session.receive(0.02)
            if delivery is None:
                continue
            ids = delivery.leased.ids
            got |= zip(ids.tolist(), delivery.payloads.column("payload").to_pylist(), strict=True)
            tokens = int64s(*[delivery.leased.token] * len(ids))
            ack = co.Ack("t", ids, tokens, 0, "g")
            shard.submit([ack, co.Lease("t", session.number, "c", len(ids), group="g")]).result(60)
        page = shard.call(ListDead("t", "g", 0, 100), 10)
        lost = page.ids.tolist()
        assert 101 in lost
        assert {page.names["reason"][n] for n in page.columns["reason"].tolist()} == {"corrupt"}
        assert all(got[n + 1] == sent[n] for n in range(300) if n + 1 in got)
        assert not set(got) & set(lost)


def test_a_backup_of_a_damaged_block_is_told_and_a_good_copy_stays(tmp_path: Path) -> None:
    data, sent = tmp_path / "data", payloads_of(100)
    with serving(LocalFiles(data), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, *sent)
        shard.checkpoint()
    with directory_source(data) as source:
        assert back_up(source, tmp_path / "before").damaged == []
    (path,) = data.glob("blocks/*.payloads")
    good = path.read_bytes()
    place = good.index(sent[50])
    path.write_bytes(good[:place] + b"?" + good[place + 1 :])
    with directory_source(data) as source:
        assert back_up(source, tmp_path / "after").damaged == [f"blocks/{path.name}"]
        assert back_up(source, tmp_path / "before").damaged == []
    assert (tmp_path / "before" / "blocks" / path.name).read_bytes() == good
    restore(tmp_path / "after", tmp_path / "restored")
    with serving(LocalFiles(tmp_path / "restored"), clock=FakeClock()) as shard:
        got, lost = received(shard, 10), dead(shard)
        assert len(got) + len(lost) == 100
        assert set(lost.values()) == {"corrupt"}


class BadSector(SharedFiles):
    """A disk that can't read a part of the blocks of payloads any more."""

    bad: range | None = None

    def open(self, name: str, writable: bool) -> Any:
        return _File(self, name, super().open(name, writable))


class _File:
    def __init__(self, disk: BadSector, name: str, file: Any) -> None:
        self._disk, self._name, self._file = disk, name, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, offset: int, length: int) -> bytes:
        bad = self._disk.bad
        if (
            bad
            and self._name.endswith(".payloads")
            and offset < bad.stop
            and bad.start < offset + length
        ):
            raise StorageFailed("Input/output error")
        read: bytes = self._file.read_at(offset, length)
        return read


def test_a_bad_sector_costs_its_messages_and_a_disk_that_is_away_costs_none() -> None:
    files, sent = BadSector(), payloads_of(300)
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *sent)
        shard.checkpoint()
    name = block_of(files)
    place = find(files, name, sent[150])
    with serving(files, clock=FakeClock()) as shard:
        files.bad = range(1 << 30)
        locations = shard.call(co.Get("t", co.Target(ids=int64s(*ids))), 10).columns["location"]
        with pytest.raises(StorageFailed):
            shard.store.payloads.gather(locations)
        files.bad = range(place, place + 1)
        got, lost = received(shard, 10), dead(shard)
        assert got == {id: sent[n] for n, id in enumerate(ids) if id not in lost}
        assert ids[150] in lost
        assert len(lost) <= (4096 + 2 * 1024) // 100 + 2
        files.bad = None
        assert set(shard.redrive("t", int64s(*lost)).status.tolist()) == {Outcome.OK}
