"""Journals with damage anywhere behind the last checkpoint, repaired with a gap or cut.

Whatever was told on the disk, and whichever frames are lost: afterwards the directory opens, `verify`
agrees, what is lost is reported, and everything of which the lost frames don't speak is as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron import commands as cc
from fasti.core.events import Event, Produced
from fasti.core.keys import Rows
from fasti.core.log import commands as lo
from fasti.core.log.body import log_of
from fasti.core.log.events import LogAppended, LogTrimmed
from fasti.core.rows.arena import FRAME_BITS
from fasti.core.timeline.partition import Partition
from fasti.errors import Corruption, Gone
from fasti.model import SECOND_US, SEQUENCE_BITS, State, TopicSettings
from fasti.storage.event_codec import decode
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.journal_recovery import segment_names
from fasti.storage.files.journal_segment import SEGMENT_SUFFIX, open_segment, walk
from fasti.storage.files.rebase import MARKER
from fasti.storage.local_shard import LocalShard
from fasti.storage.log_rows import LOST_HEADER
from fasti.storage.manifest import Manifest
from fasti.storage.store import ShardStore
from fasti.storage.tools.inspect import inspect
from fasti.storage.tools.losses import Losses
from fasti.storage.tools.repair import repair_directory
from fasti.testing.disk import Crashed, SimulatedFiles
from tests.crash.photographs import moment
from tests.crash.shard_workload import Driven, Workload
from tests.crash.test_cron_crash import BEGIN_US, SCHEDULES, Believed, Told
from tests.crash.test_groups_crash import Story as GroupsStory
from tests.crash.test_sinks_crash import SinksShard
from tests.crash.test_sinks_crash import story as sinks_story
from tests.properties import mixed_rig
from tests.seeds import seeds

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=64 << 20, leases_max=4096)
LATER_US = moment(100_000)


# Stories


def tell_messages(files: SimulatedFiles, seed: int) -> None:
    driven = Driven(files)
    work = Workload(seed)
    for step, op in enumerate(work.ops):
        driven.do(op, moment(step))
    for step in range(10, 120):
        op = work.grow(driven, moment(step))
        work.note(driven.do(op, moment(step)))
    driven.shard.close()


def tell_expiries(files: SimulatedFiles, seed: int) -> None:
    """Messages that expire, some moved, some leased, some over."""
    rng = random.Random(seed)
    shard = LocalShard(FileStorage(files), SETTINGS)
    shard.call(co.CreateTopic("t", TopicSettings(partitions=2)), moment(0), 0)
    ids: list[int] = []
    for step in range(1, 60):
        count = rng.randint(1, 4)
        over = co.Expires(at_us=moment(step + rng.choice([1, 5, 1000])) * np.ones(count, np.int64))
        when = co.When(due_us=np.full(count, moment(step - 1), dtype=np.int64))
        rows = Rows.of([b"%d" % step] * count)
        made = co.Produce("t", rows, when, partition=rng.randrange(2), expires=over)
        ids += shard.call(made, moment(step), 0).ids.tolist()
        if rng.random() < 0.5:
            target = co.Target(ids=np.array(rng.sample(ids, min(len(ids), 4)), dtype=np.int64))
            later = co.When(due_us=np.full(len(target), moment(step + 2), dtype=np.int64))
            until = co.Expires(at_us=np.full(len(target), moment(step + 9), dtype=np.int64))
            shard.call(co.Move("t", target, later, expires=until), moment(step), 0)
        if rng.random() < 0.3:
            shard.step([co.Lease("t", step, f"c{step}", 2, wait=False)], moment(step), 0)
        if step == 20 and seed % 2:
            shard.checkpoint(moment(step), 0)
    shard.close()


def tell_groups(files: SimulatedFiles, seed: int) -> None:
    story = GroupsStory(files, seed)
    story.begin()
    for step in range(1, 120):
        story.go_on(moment(step))
    story.shard.close()


def tell_mixed(files: SimulatedFiles, seed: int) -> None:
    """Transactions over timelines, priorities, logs and key-value topics."""
    mixed = mixed_rig.MixedShard(seed)
    mixed.shard.close()
    mixed.files = files  # type: ignore[assignment]
    mixed.shard = LocalShard(FileStorage(files), mixed_rig.SHARD)
    for name, settings in mixed_rig.TOPICS.items():
        mixed.call(co.CreateTopic(name, settings))
    mixed.call(lo.CreateGroup("events", mixed_rig.GROUP, -1))
    for step in range(60):
        mixed.now_us += SECOND_US
        parts = [mixed.part() for _ in range(mixed.rng.randint(1, 4))]
        if mixed.call(co.Transaction(parts)).committed:
            mixed.used(parts)
        mixed.take()
        if step == 20 and seed % 2:
            mixed.shard.checkpoint(mixed.now_us, 0)
    mixed.shard.close()


def tell_schedules(files: SimulatedFiles, seed: int) -> None:
    rng = random.Random(seed)
    told = Told(files, BEGIN_US, Believed())
    told.do(co.CreateTopic("t", TopicSettings(lookahead_us=0, partitions=2)))
    told.do(co.CreateTopic("c", TopicSettings(kind="cron")))
    told.do(cc.PutSchedules("c", [(name, each.to_json()) for name, each in SCHEDULES.items()]))
    for second in range(12):
        told.pass_seconds(1)
        told.consume(rng.choice([1, 3, 100]))
        if second == 5 and seed % 2:
            told.shard.local.checkpoint(told.shard.now, 0)
        if second == 4:
            told.do(cc.DeleteSchedule("c", "strict"))
        if second == 6:
            told.do(cc.PauseSchedule("c", "cron", True))
        if second == 8:
            told.do(cc.PutSchedules("c", [("new", SCHEDULES["strict"].to_json())]))
    told.shard.local.close()


def tell_sinks(files: SimulatedFiles, seed: int) -> None:
    told = SinksShard(files)
    for step, op in enumerate(sinks_story(seed, 90)):
        told.do(op, moment(step))
    told.shard.close()


STORIES: dict[str, Callable[[SimulatedFiles, int], None]] = {
    "messages": tell_messages,
    "expiries": tell_expiries,
    "groups": tell_groups,
    "mixed": tell_mixed,
    "schedules": tell_schedules,
    "sinks": tell_sinks,
}


# What a journal holds, and how it is damaged


@dataclass
class Place:
    name: str
    offset: int
    begins: bool
    ends: bool
    synced_through: int
    events: list[Event]


def manifest_of(files: Files) -> Manifest:
    found = FileBlocks(files).read_manifest()
    assert found is not None
    return Manifest.decode(found[1])


def frames_of(files: Files, seed: tuple[int, int]) -> dict[int, Place]:
    """Every frame of a sound journal: where it lies and what it says."""
    found: dict[int, Place] = {}
    names = segment_names(files, "journal")
    bounds = [int(name.rpartition("/")[2].removesuffix(SEGMENT_SUFFIX)) for name in names]
    for name, bound in zip(names, [*bounds[1:], None], strict=True):
        segment = open_segment(files, name)
        walked = walk(segment.view, segment.header, name, stop_before=bound)
        segment.adopt(walked.places, verified=True)
        first = segment.header.first_sequence
        for index, (header, body) in enumerate(segment.frames_from(first)):
            found[first + index] = Place(
                name,
                walked.offset(index),
                bool(header.flags & 1),
                bool(header.flags & 2),
                header.synced_through,
                decode(memoryview(bytes(body[0])), seed)[0],
            )
    return found


def voided(frames: dict[int, Place], lost: set[int]) -> set[int]:
    """Lost frames, and the rest of the groups that they belong to."""
    gone: set[int] = set()
    group: set[int] = set()
    for sequence in sorted(frames):
        group.add(sequence)
        if frames[sequence].ends:
            gone |= group if group & lost else set()
            group = set()
    return gone


def choose(rng: random.Random, frames: dict[int, Place], position: int) -> set[int]:
    """Frames to damage: a few runs. What nobody knew to be synced would pass for a torn tail."""
    synced = max((place.synced_through for place in frames.values()), default=0)
    ours = [sequence for sequence in frames if position < sequence <= synced]
    chosen: set[int] = set()
    for _ in range(rng.randint(1, 3)):
        if ours:
            first = rng.choice(ours)
            chosen |= set(range(first, first + rng.randint(1, 6))) & set(ours)
    return chosen


def mentioned(frames: dict[int, Place], gone: set[int]) -> dict[int, set[int]]:
    """Of each topic (by number) the ids that lost frames speak of."""
    ids: dict[int, set[int]] = {}
    for sequence in gone:
        for event in frames[sequence].events:
            topic, high = (
                getattr(event, "topic", 0),
                getattr(event, "partition", 0) << SEQUENCE_BITS,
            )
            mine = ids.setdefault(topic, set())
            if isinstance(event, Produced):
                mine |= {high | event.first_sequence + n for n in range(len(event.due_us))}
            for name in ("sequence", "skipped", "id"):
                values = getattr(event, name, None)
                if values is not None:
                    mine |= {high | int(each) for each in np.atleast_1d(values)}
    return ids


# What can be seen


def given(partition: Partition) -> np.ndarray[Any, Any]:
    """Sequences that may have a row: a repair passes millions over that don't."""
    view, arena = partition.ledger.view(), partition.arena
    parts = [np.zeros(0, dtype=np.int64)]
    for page, frame in enumerate(view.frames.tolist(), start=view.base_page):
        if frame > 0:
            parts.append(np.arange(page << FRAME_BITS, (page + 1) << FRAME_BITS))
    for frame in view.packed_frames:
        parts.append(arena.packed_id[frame << FRAME_BITS : (frame + 1) << FRAME_BITS])
    sequences = np.unique(np.concatenate(parts))
    return sequences[(sequences > 0) & (sequences < view.next_sequence)]


def messages(shard: LocalShard) -> dict[int, dict[int, Any]]:
    """Every row of every topic that keeps rows in the arena, by topic and id."""
    seen: dict[int, dict[int, Any]] = {}
    arena = shard.engine.memory.arena
    for topic in shard.engine.state.topics.values():
        mine = seen.setdefault(topic.number, {})
        for partition in topic.partitions:
            sequences = given(partition)
            slots = partition.ledger.slots(sequences) if len(sequences) else sequences
            states = partition.states(slots)
            here = np.flatnonzero(states != State.NONE)
            if not len(here):
                continue
            rows = shard.store.payloads.gather(arena.location.take(slots[here])).to_pylist()
            for place, content in zip(here.tolist(), rows, strict=True):
                slot = slots[place]
                values = (int(states[place]), int(arena.due[slot]), int(arena.version[slot]))
                number = partition.number << SEQUENCE_BITS | int(sequences[place])
                mine[number] = (*values, int(arena.attempts[slot]), content["payload"])
    return seen


def log_rows(shard: LocalShard) -> dict[tuple[int, int], dict[int, Any]]:
    """Every row of every log, by topic, partition and offset."""
    seen: dict[tuple[int, int], dict[int, Any]] = {}
    for topic in shard.engine.state.topics.values():
        for partition in log_of(topic).partitions if topic.settings.kind == "log" else []:
            offsets = np.arange(partition.earliest, partition.next_offset, dtype=np.int64)
            rows = []
            if len(offsets):
                rows = shard.store.payloads.gather(partition.locations_of(offsets)).to_pylist()
            seen[topic.number, partition.number] = {
                offset: (row["payload"], row["key"], dict(row["headers"] or []))
                for offset, row in zip(offsets.tolist(), rows, strict=True)
            }
    return seen


def covers(losses: Losses, topic: int, number: int) -> bool:
    return any(
        each.first <= number <= each.last
        for told in losses.topics
        if told.number == topic
        for each in (*told.ids, *told.possible)
    )


def check(
    before: LocalShard, after: LocalShard, frames: dict[int, Place], gone: set[int], told: Losses
) -> None:
    spoken = mentioned(frames, gone)
    was, now = messages(before), messages(after)
    for topic, rows in was.items():
        if topic not in now:
            continue  # Its creation is lost: what is left of it has another test.
        for number, row in rows.items():
            if number in spoken.get(topic, ()):
                if number not in now[topic]:
                    assert covers(told, topic, number), "lost, and not reported"
            elif row[0] != State.STAGED and now[topic].get(number, (0,))[0] != State.STAGED:
                assert now[topic].get(number) == row, f"{topic}/{number} is not as it was"
    for losses in told.topics:
        for each in losses.ids if losses.kind != "log" else []:
            assert not [n for n in now[losses.number] if each.first <= n <= each.last]
    check_logs(before, after, frames, gone, told)


def check_logs(
    before: LocalShard, after: LocalShard, frames: dict[int, Place], gone: set[int], told: Losses
) -> None:
    appended: set[tuple[int, int, int]] = set()
    trimmed = set()
    for sequence in gone:
        for event in frames[sequence].events:
            if isinstance(event, LogAppended):
                first, place = event.first_offset, (event.topic, event.partition)
                appended |= {(*place, first + n) for n in range(len(event.row))}
            if isinstance(event, LogTrimmed):
                trimmed.add((event.topic, event.partition))
    reported = {
        (losses.number, each.partition, offset)
        for losses in told.topics
        if losses.kind == "log"
        for each in losses.ids
        for offset in range(each.first, each.last + 1)
    }
    assert reported <= appended
    now = log_rows(after)
    for place, rows in log_rows(before).items():
        if place not in now:
            continue
        for offset, row in rows.items():
            if (*place, offset) in appended:
                lost = now[place].get(offset)
                assert lost is None or LOST_HEADER in lost[2]
                assert lost is None or (*place, offset) in reported
            else:
                assert now[place][offset] == row
        if place not in trimmed:
            assert set(now[place]) <= set(rows)


def go_on(files: Files) -> None:
    """A repaired directory is one like any other: it works, checkpoints and opens again."""
    shard = LocalShard(FileStorage(files), SETTINGS)
    for topic in list(shard.engine.state.topics.values()):
        shard.call(co.Count(topic.name), LATER_US, 0)
        if topic.settings.kind in ("timeline", "priority"):
            step = shard.step([co.Lease(topic.name, 1, "w", 1000, wait=False)], LATER_US, 0)
            assert step.replies[0].error is None
    shard.step([], LATER_US, 10**15)
    shard.checkpoint(LATER_US, 0)
    shard.close()
    LocalShard(FileStorage(files), SETTINGS).close()
    assert inspect(files).ok


def damaged(name: str, seed: int) -> tuple[SimulatedFiles, SimulatedFiles, dict[int, Place], Any]:
    """A story's disk, the same with damage, its frames, and which of them are gone."""
    files = SimulatedFiles()
    STORIES[name](files, seed)
    rng = random.Random(seed)
    sound = files.crash(rng)
    manifest = manifest_of(sound)
    frames = frames_of(sound, manifest.seed)
    lost = choose(rng, frames, manifest.position)
    image = files.crash(rng)
    for sequence in lost:
        image.flip_bit(frames[sequence].name, frames[sequence].offset + rng.randrange(70))
    return sound, image, frames, lost


@pytest.mark.parametrize("seed", seeds(3, range(8)))
@pytest.mark.parametrize("name", STORIES)
def test_a_gap_costs_what_the_lost_frames_said(name: str, seed: int) -> None:
    sound, image, frames, lost = damaged(name, seed)
    if not lost:
        return
    incarnation = manifest_of(sound).incarnation
    assert not inspect(image).ok
    planned = repair_directory(image, allow_gap=True)
    assert not inspect(image).ok
    repaired = repair_directory(image, allow_gap=True, dry_run=False)
    assert planned == repaired
    report = inspect(image)
    assert report.ok, report.findings
    assert repaired.losses is not None
    assert not [note for note in repaired.losses.notes if "contradicts" in note]
    assert manifest_of(image).incarnation != incarnation
    assert not repair_directory(image).actions
    before, after = (
        LocalShard(FileStorage(sound), SETTINGS),
        LocalShard(FileStorage(image), SETTINGS),
    )
    check(before, after, frames, voided(frames, lost), repaired.losses)
    before.close()
    after.close()
    go_on(image)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1100))
@pytest.mark.parametrize("name", STORIES)
def test_more_gaps(name: str, seed: int) -> None:
    test_a_gap_costs_what_the_lost_frames_said(name, seed)


@pytest.mark.parametrize("seed", seeds(2, range(4)))
@pytest.mark.parametrize("name", STORIES)
def test_a_cut_leaves_what_was_before_it(name: str, seed: int) -> None:
    sound, image, frames, lost = damaged(name, seed)
    if not lost:
        return
    planned = repair_directory(image)
    repaired = repair_directory(image, dry_run=False)
    assert planned == repaired
    assert [action.kind for action in repaired.actions] == ["cut", "rebase"]
    assert repaired.losses is not None
    assert repaired.losses.frames[-1] == (repaired.losses.frames[0][0], None)
    assert repaired.losses.frames[0][0] <= min(lost)
    assert inspect(image).ok
    before, after = (
        LocalShard(FileStorage(sound), SETTINGS),
        LocalShard(FileStorage(image), SETTINGS),
    )
    cut = {sequence for sequence in frames if sequence >= repaired.losses.frames[0][0]}
    check(before, after, frames, cut, repaired.losses)
    before.close()
    after.close()
    go_on(image)


@pytest.mark.parametrize("seed", seeds(2, range(4)))
@pytest.mark.parametrize("name", STORIES)
def test_missing_and_headless_segments(name: str, seed: int) -> None:
    """Segments behind the last checkpoint are gone, or nothing of them can be told."""
    files = SimulatedFiles()
    STORIES[name](files, seed)
    rng = random.Random(seed)
    sound, image = files.crash(rng), files.crash(rng)
    manifest = manifest_of(sound)
    frames = frames_of(sound, manifest.seed)
    names = segment_names(image, "journal")
    chosen = rng.choice(names[:-1] or names)
    if seed % 2:
        image.delete(chosen)
    else:
        for offset in (3, 64 + 3):
            image.flip_bit(chosen, offset)
    gone = {n for n, place in frames.items() if place.name == chosen and n > manifest.position}
    repaired = repair_directory(image, allow_gap=True, dry_run=False)
    assert inspect(image).ok
    before, after = (
        LocalShard(FileStorage(sound), SETTINGS),
        LocalShard(FileStorage(image), SETTINGS),
    )
    if repaired.losses is not None:
        check(before, after, frames, voided(frames, gone), repaired.losses)
    before.close()
    after.close()
    go_on(image)


@pytest.mark.parametrize(
    ("name", "allow_gap"),
    [
        ("messages", True),
        ("groups", False),
        pytest.param("messages", False, marks=pytest.mark.long),
        pytest.param("groups", True, marks=pytest.mark.long),
    ],
)
def test_a_repair_that_is_interrupted_is_run_again(name: str, allow_gap: bool) -> None:
    """At every operation of the disk; what counts is as after a repair in one go."""
    _sound, image, _frames, _lost = damaged(name, 3)
    rng = random.Random(1)
    whole = image.crash(rng)
    repair_directory(whole, allow_gap=allow_gap, dry_run=False)
    expected = seen(whole)
    unfinished = 0
    for operation in range(1, 10_000):
        disk = image.crash(rng)
        disk.stop_before = disk.operations + operation
        try:
            repair_directory(disk, allow_gap=allow_gap, dry_run=False)
        except Crashed:
            disk = disk.crash(rng)
        else:
            break
        if disk.exists(MARKER):
            unfinished += 1
            with pytest.raises(Corruption, match="run `fasti storage repair --apply` again"):
                ShardStore(FileStorage(disk), SETTINGS)
            assert not inspect(disk).ok
        repair_directory(disk, allow_gap=allow_gap, dry_run=False)
        assert inspect(disk).ok
        assert seen(disk) == expected
    assert unfinished > 5


def seen(files: Files) -> Any:
    shard = LocalShard(FileStorage(files), SETTINGS)
    try:
        return messages(shard), log_rows(shard)
    finally:
        shard.close()


def test_positions_from_before_a_repair_are_gone() -> None:
    _sound, image, _frames, _lost = damaged("messages", 3)
    before = manifest_of(image)
    repair_directory(image, allow_gap=True, dry_run=False)
    after = manifest_of(image)
    assert after.incarnation != before.incarnation
    shard = LocalShard(FileStorage(image), SETTINGS)
    with pytest.raises(Gone):
        list(shard.store.journal.replay(before.position))
    shard.close()


def test_a_damaged_block_is_refused_and_nothing_is_changed() -> None:
    """Without the state block nothing can be relied on; others are given up when asked for."""
    _sound, image, _frames, _lost = damaged("messages", 3)
    state = manifest_of(image).state_name
    image.flip_bit(f"blocks/{state}", 200)
    before = {name: bytes(image.open(name, False).map()) for name in image.list("")}
    with pytest.raises(Corruption, match=r"restore the directory from a backup$"):
        repair_directory(image, allow_gap=True, dry_run=False)
    assert {name: bytes(image.open(name, False).map()) for name in image.list("")} == before


@pytest.mark.parametrize("seed", seeds(3, range(6)))
@pytest.mark.parametrize("name", ["messages", "groups", "mixed", "sinks"])
def test_damaged_blocks_are_given_up_with_what_they_hold(name: str, seed: int) -> None:
    files = SimulatedFiles()
    STORIES[name](files, 2 * seed + 1)
    rng = random.Random(seed)
    sound, image = files.crash(rng), files.crash(rng)
    manifest = manifest_of(image)
    runs = [block for block in manifest.blocks if not block.delta]
    objects = [each for block in runs for each in block.names]
    objects += [block.name for block in manifest.logs]
    if not objects:
        return
    chosen = rng.choice(objects)
    if seed % 3:
        image.flip_bit(f"blocks/{chosen}", rng.randrange(50))
    else:
        image.delete(f"blocks/{chosen}")
    assert not inspect(image).ok
    with pytest.raises(Corruption, match="--allow-gap"):
        repair_directory(image, dry_run=False)
    planned = repair_directory(image, allow_gap=True)
    repaired = repair_directory(image, allow_gap=True, dry_run=False)
    assert planned == repaired
    assert "drop_block" in [action.kind for action in repaired.actions]
    assert inspect(image).ok, inspect(image).findings
    told = repaired.losses
    assert told is not None
    assert not [note for note in told.notes if "contradicts" in note]
    before, after = (
        LocalShard(FileStorage(sound), SETTINGS),
        LocalShard(FileStorage(image), SETTINGS),
    )
    check_without_block(before, after, told, chosen)
    before.close()
    after.close()
    go_on(image)


def check_without_block(before: LocalShard, after: LocalShard, told: Losses, chosen: str) -> None:
    """What is missing is reported; unless the block's ids were in what is damaged."""
    was, now = messages(before), messages(after)
    missing = {(topic, n) for topic, rows in was.items() for n in rows if n not in now[topic]}
    reported = [(losses.number, each) for losses in told.topics for each in losses.ids]
    unknown = [note for note in told.notes if "ids they had is not known" in note]
    if not unknown:
        for topic, number in missing:
            assert any(t == topic and each.first <= number <= each.last for t, each in reported)
    assert chosen.endswith(".rows") or not unknown
    for topic, rows in now.items():
        for number, row in rows.items():
            if State.STAGED not in (row[0], was[topic].get(number, row)[0]):
                assert was[topic][number] == row
    stayed = log_rows(after)
    for place, rows in log_rows(before).items():
        assert set(stayed[place]) == set(rows)
        for offset, row in rows.items():
            if LOST_HEADER not in stayed[place][offset][2]:
                assert stayed[place][offset] == row
