"""Looking into a data directory without changing it: is everything there, and what does it hold?

`verify` reads the journal, the manifest and the sizes of blocks. `inspect` goes on to every object that
the manifest names: that it is there, that its checksum holds, that it has as many rows as the manifest
says, that the journal reaches from where the manifest ends, and that an engine can be brought up
to date from it all, as an opening would. `stats` does the latter too, and counts. What needs an engine
takes the directory's lock for that time, because a running shard would change files under it.

Called by tools for people, rarely; reads everything, so it takes as long as the data is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from fasti.core.commands import Count
from fasti.core.engine import Engine
from fasti.errors import Corruption, DataDirLocked, FastiError
from fasti.storage.blocks import TEMPORARY
from fasti.storage.files import Files, read_whole, size_of
from fasti.storage.files.blocks import MANIFEST_PATH, FileBlocks, decode_manifest
from fasti.storage.files.copies import OPEN_NAME, copied_from
from fasti.storage.files.copies import warning as copy_warning
from fasti.storage.files.journal_recovery import segment_names
from fasti.storage.files.journal_segment import first_sequence_in, read_segment_header
from fasti.storage.files.journal_survey import Finding, survey
from fasti.storage.files.overlay_files import OverlayFiles
from fasti.storage.files.rebase import MARKER
from fasti.storage.log_blocks import LogBlock
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block
from fasti.storage.seals import unseal
from fasti.storage.state_block import decode_state
from fasti.storage.tools.at_rest import DirectoryAtRest, existing_manifest, open_directory

_REACH = "restore the segments that had them, or repair the directory without them"
_RESTORE = "restore the directory from a copy: what the journal had of it is trimmed"
_NOTHING = "nothing: it is removed at the next opening"


@dataclass(slots=True)
class Report:
    """What `verify` or `inspect` saw. ``ok`` when nothing that was acknowledged is lost."""

    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    frames: int = 0
    journal_bytes: int = 0
    blocks: int = 0
    block_bytes: int = 0
    manifest_version: int | None = None

    @property
    def ok(self) -> bool:
        return all(finding.harmless for finding in self.findings)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic, and how many of its messages are in each state."""

    name: str
    partitions: int
    states: dict[str, int]


@dataclass(slots=True)
class Stats:
    """What a data directory holds. `position` is the frame up to which blocks tell everything."""

    manifest_version: int
    checkpoint: int
    position: int
    incarnation: int
    first_sequence: int
    last_sequence: int
    replayed_frames: int
    segments: int
    journal_bytes: int
    blocks: int
    delta_blocks: int
    block_rows: int
    live_rows: int
    block_bytes: int
    total_bytes: int
    # Blocks of logs, and their rows, of which retention may have dropped some.
    log_blocks: int = 0
    log_rows: int = 0
    topics: list[TopicStats] = field(default_factory=list)

    @property
    def frames(self) -> int:
        """How many frames the journal still has."""
        return self.last_sequence - self.first_sequence + 1

    @property
    def live_share(self) -> float:
        """The share of run rows that still are a message's place; 1 when there are none."""
        return self.live_rows / self.block_rows if self.block_rows else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "frames": self.frames, "live_share": self.live_share}


# Checking


def verify(files: Files) -> Report:
    """Reads the whole journal, the manifest and the sizes of all blocks; changes nothing."""
    journal = survey(files, "journal")
    report = Report(findings=list(journal.findings), segments=len(journal.segments))
    report.frames = sum(segment.frames for segment in journal.segments)
    report.journal_bytes = sum(segment.size for segment in journal.segments)
    for name in files.list("blocks/"):
        try:
            _verify_block(files, name, report)
        except FastiError as error:
            remedy = "restore it, or rebuild from the journal if that reaches back to its beginning"
            report.findings.append(Finding(name, 0, error.code, error.message, remedy))
    return report


def _verify_block(files: Files, name: str, report: Report) -> None:
    if name.endswith(TEMPORARY):
        message = "left by a write that was never finished"
        report.findings.append(Finding(name, 0, "leftover", message, _NOTHING, harmless=True))
    elif name == MANIFEST_PATH:
        report.manifest_version = decode_manifest(read_whole(files, name), name)[0]
    else:
        report.block_bytes += size_of(files, name)
        report.blocks += 1


def inspect(files: Files) -> Report:
    """Everything that `verify` checks, every block, and whether a shard would open. Changes nothing.

    Beside a running shard the end of the journal is a moving target, and so are the blocks while
    a checkpoint is being written; whether it would open is not tried then.
    """
    report = verify(files)
    if files.exists(MARKER):
        message = "a repair was interrupted"
        report.findings.append(Finding(MARKER, 0, "unfinished_repair", message, "repair it again"))
        return report
    origin = copied_from(files)
    if origin is not None:
        finding = Finding(
            OPEN_NAME, 0, "copy", copy_warning(origin), "nothing, if no other is bad", harmless=True
        )
        report.findings.append(finding)
    if report.manifest_version is None:
        if report.segments and not files.exists(MANIFEST_PATH):
            message = "there is a journal but no manifest"
            report.findings.append(Finding(MANIFEST_PATH, 0, "no_manifest", message, _RESTORE))
        return report
    try:
        _, manifest = existing_manifest(files)
    except FastiError as error:
        report.findings.append(Finding(MANIFEST_PATH, 0, error.code, error.message, _RESTORE))
        return report
    except (ValueError, KeyError, TypeError) as error:
        message = f"its content can't be decoded: {error!r}"
        report.findings.append(Finding(MANIFEST_PATH, 0, "corruption", message, _RESTORE))
        return report
    report.findings += check_objects(files, manifest)
    if report.ok:
        report.findings += _check_reach(files, report, manifest)
    if report.ok:
        report.findings += _check_opening(files)
    return report


def check_objects(files: Files, manifest: Manifest) -> Iterator[Finding]:
    """What is wrong with the objects that a manifest names, and which are left over."""
    blocks = FileBlocks(OverlayFiles(files))
    stored = set(blocks.list())
    for block in manifest.blocks:
        for name in block.names:
            yield from _check_object(blocks, name, block, name in stored)
    for log_block in manifest.logs:
        yield from _check_object(blocks, log_block.name, log_block, log_block.name in stored)
    yield from _check_logs(manifest)
    if manifest.state_name:
        yield from _check_object(blocks, manifest.state_name, None, manifest.state_name in stored)
    for name in sorted(stored - manifest.names):
        message = "left by a checkpoint that was never finished, or not yet deleted"
        yield Finding(f"blocks/{name}", 0, "unnamed_block", message, _NOTHING, harmless=True)


def _check_logs(manifest: Manifest) -> Iterator[Finding]:
    """Whether the blocks of each partition of a log follow one another."""
    ordered = sorted(manifest.logs, key=lambda block: (block.place, block.first_offset))
    for before, block in pairwise(ordered):
        if before.place == block.place and before.end != block.first_offset:
            message = (
                f"{before.name} ends at offset {before.end} of topic {block.topic}, partition "
                f"{block.partition}, and {block.name} goes on at {block.first_offset}"
            )
            yield Finding(MANIFEST_PATH, 0, "damaged_log", message, _RESTORE)


def _check_object(
    blocks: FileBlocks, name: str, block: Block | LogBlock | None, is_stored: bool
) -> Iterator[Finding]:
    file = f"blocks/{name}"
    if not is_stored:
        yield Finding(file, 0, "missing_block", "the manifest names it", _RESTORE)
        return
    try:
        if block is None:
            decode_state(blocks.get(name), name)
            return
        rows = unseal(blocks.get(name), name).num_rows
    except Corruption as error:
        yield Finding(file, error.offset, "damaged_block", error.message, _RESTORE)
        return
    except FastiError as error:
        yield Finding(file, 0, error.code, error.message, _RESTORE)
        return
    if rows != block.rows:
        message = f"it has {rows} rows, the manifest says {block.rows}"
        yield Finding(file, 0, "damaged_block", message, _RESTORE)


def _check_reach(files: Files, report: Report, manifest: Manifest) -> Iterator[Finding]:
    """Whether the journal, which is whole, goes on where the blocks end."""
    names = segment_names(files, "journal")
    for name in names[-1:]:
        header = read_segment_header(files, name)
        if header.incarnation != manifest.incarnation:
            message = "the journal is of another directory than the blocks"
            yield Finding(name, 0, "foreign_segment", message, "find out where it came from")
            return
    first = first_sequence_in(names[0]) if names else 1
    last = first + report.frames - 1
    if first > manifest.position + 1:
        message = f"frames {manifest.position + 1} to {first - 1} are missing"
        yield Finding("journal", 0, "journal_gap", message, _REACH)
    elif last < manifest.position:
        message = f"it ends with frame {last}, but the blocks tell of {manifest.position}"
        yield Finding("journal", 0, "journal_gap", message, _REACH)


def _check_opening(files: Files) -> Iterator[Finding]:
    """What is sound piece by piece may still contradict itself, as after a repair with a gap."""
    try:
        stats(files, 0)
    except DataDirLocked:
        return
    except FastiError as error:
        remedy = "repair the directory, or restore it from a backup"
        yield Finding("journal", 0, "contradiction", error.message, remedy)


# Counting


def stats(files: Files, now_us: int) -> Stats:
    """What the directory holds. Raises `locked` while a shard has it open, or what opening would.

    `now_us` tells which messages are ready.
    """
    lock = files.lock()
    try:
        return _stats(OverlayFiles(files), now_us)
    finally:
        lock.release()


def _stats(files: Files, now_us: int) -> Stats:
    with open_directory(files) as stored:
        engine, replayed = stored.load()
        return _count(files, stored, engine, replayed, now_us)


def _count(
    files: Files, stored: DirectoryAtRest, engine: Engine, replayed: int, now_us: int
) -> Stats:
    manifest, journal = stored.manifest, stored.journal
    runs = [block for block in manifest.blocks if not block.delta]
    dead = sum(engine.memory.marks.dead(block.number) for block in runs)
    rows = sum(block.rows for block in runs)
    sizes = {name: size_of(files, name) for name in files.list("")}
    return Stats(
        manifest_version=stored.version,
        checkpoint=manifest.checkpoint,
        position=manifest.position,
        incarnation=manifest.incarnation,
        first_sequence=journal.first_sequence,
        last_sequence=journal.last_sequence,
        replayed_frames=replayed,
        segments=journal.segments,
        journal_bytes=sum(size for name, size in sizes.items() if name.startswith("journal/")),
        blocks=len(runs),
        delta_blocks=len(manifest.blocks) - len(runs),
        block_rows=rows,
        live_rows=rows - dead,
        block_bytes=sum(size for name, size in sizes.items() if name.startswith("blocks/")),
        total_bytes=sum(sizes.values()),
        log_blocks=len(manifest.logs),
        log_rows=sum(block.rows for block in manifest.logs),
        topics=_topics(engine, now_us),
    )


def _topics(engine: Engine, now_us: int) -> list[TopicStats]:
    topics = sorted(engine.state.topics.values(), key=lambda topic: topic.name)
    replies = engine.step([Count(topic.name) for topic in topics], now_us, 0).replies
    return [
        TopicStats(topic.name, topic.settings.partitions, reply.states)
        for topic, reply in zip(topics, replies, strict=True)
    ]
