"""Scrubbing: everything that is stored is read once and compared with its checksums.

It finds damage before a reader does, while a backup still has the bytes. Files are read with plain
reads, never through maps, so that a bad sector is an error and not the end of the process. `pace` is
called after each piece with its bytes and may wait.

Beside a running shard files come and go: one that is not there any more, or not named any more, is no
finding, and a segment is looked at again before it is one. The journal's last segment is left out
then, because it is being written.

One thread. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fasti.core.capsule import dead_rows
from fasti.errors import Corruption, FastiError, NotFound
from fasti.model import SEQUENCE_BITS
from fasti.storage.blocks import BlockStore
from fasti.storage.damaged_rows import salvage
from fasti.storage.damages import LostIds, ScrubFinding
from fasti.storage.files import Files, size_of
from fasti.storage.files.journal_recovery import check_sealed, segment_names
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    decode_segment_header,
    first_sequence_in,
    walk,
)
from fasti.storage.log_blocks import LogBlock
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block, rows_columns
from fasti.storage.seals import open_seal, unseal
from fasti.storage.state_block import decode_state

Int64s = NDArray[np.int64]
Pace = Callable[[int], None]

_READ_BYTES = 1 << 20
# A finding names so many ids of each topic; it counts all.
_IDS_MAX = 1_000


def scrub(
    files: Files, blocks: BlockStore, manifest: Manifest, pace: Pace, journal: bool = True
) -> Iterator[ScrubFinding]:
    """All findings, one file after the other."""
    for block in manifest.blocks:
        for name in block.names:
            yield from _scrub_object(files, blocks, manifest, name, block, pace)
    for log_block in manifest.logs:
        yield from _scrub_object(files, blocks, manifest, log_block.name, log_block, pace)
    if manifest.state_name:
        yield from _scrub_object(files, blocks, manifest, manifest.state_name, None, pace)
    if journal:
        for name, after in pairwise(segment_names(files, "journal")):
            yield from _scrub_segment(files, name, after, pace)


def total_bytes(files: Files, manifest: Manifest) -> int:
    """About how much there is to read."""
    blocks = sum(block.size_bytes for block in manifest.blocks)
    logs = sum(block.size_bytes for block in manifest.logs)
    return blocks + logs + sum(_size(files, name) for name in segment_names(files, "journal")[:-1])


def _size(files: Files, name: str) -> int:
    try:
        return size_of(files, name)
    except NotFound:
        return 0


def _read(files: Files, name: str, pace: Pace) -> bytearray:
    """All of a file, into one buffer: a list of its pieces would leave a hole in the heap for each."""
    file = files.open(name, writable=False)
    try:
        data = bytearray(file.size)
        end = 0
        for offset in range(0, file.size, _READ_BYTES):
            part = file.read_at(offset, _READ_BYTES)
            end = offset + len(part)
            data[offset:end] = part
            pace(len(part))
        del data[end:]
        return data
    finally:
        file.close()


# Blocks


def _scrub_object(
    files: Files,
    blocks: BlockStore,
    manifest: Manifest,
    name: str,
    block: Block | LogBlock | None,
    pace: Pace,
) -> Iterator[ScrubFinding]:
    path, offset = f"blocks/{name}", 0
    data: bytes | bytearray = b""
    try:
        data = _read(files, path, pace)
        open_seal(memoryview(data), name)
        return
    except (NotFound, Corruption) as error:
        message = error.message
    except FastiError as error:
        # A bad sector, mostly.
        message = error.message
        with suppress(FastiError):
            data = bytes(blocks.readable(name))
    lost: list[LostIds] = []
    if block is not None and name.endswith(".payloads"):
        left = salvage(memoryview(data))
        offset = left.offset
        rows = np.flatnonzero(left.damaged["payload"][: block.rows])
        lost = _lost_ids(blocks, manifest, block, rows)
    yield ScrubFinding(path, offset, message, lost)


def _lost_ids(
    blocks: BlockStore, manifest: Manifest, block: Block | LogBlock, rows: NDArray[np.intp]
) -> list[LostIds]:
    """Whose the rows are: of a log by their offsets, of messages by the block's metadata."""
    try:
        capsule = decode_state(blocks.get(manifest.state_name), manifest.state_name)
        names = {topic["number"]: topic["name"] for topic in capsule.head["topics"]}
        if isinstance(block, LogBlock):
            ids = block.first_offset + rows + 1 | block.partition << SEQUENCE_BITS
            return [_named(names, block.topic, ids)] if len(ids) else []
        dead = dead_rows(capsule).get(block.number)
        columns = rows_columns(unseal(blocks.get(block.rows_name), block.rows_name))
    except FastiError:
        return []
    if dead is not None:
        rows = rows[np.unpackbits(dead, bitorder="little")[rows] == 0]
    topics = columns["topic"][rows]
    partitions = columns["partition"][rows].astype(np.int64)
    ids = columns["sequence"][rows] | partitions << SEQUENCE_BITS
    return [_named(names, topic, ids[topics == topic]) for topic in np.unique(topics).tolist()]


def _named(names: dict[int, str], topic: int, ids: Int64s) -> LostIds:
    return LostIds(names.get(topic, f"#{topic}"), len(ids), ids[:_IDS_MAX].tolist())


# The journal


def _scrub_segment(files: Files, name: str, after: str, pace: Pace) -> Iterator[ScrubFinding]:
    try:
        _check_segment(files, name, after, pace)
    except NotFound:
        return
    except FastiError:
        # It may have been trimmed, and its file be in use as another segment already.
        if name not in segment_names(files, "journal"):
            return
        try:
            _check_segment(files, name, after, pace)
        except NotFound:
            return
        except FastiError as error:
            if name in segment_names(files, "journal"):
                offset = int(error.details.get("offset", 0))
                yield ScrubFinding(name, offset, error.message)


def _check_segment(files: Files, name: str, after: str, pace: Pace) -> None:
    """Raises `Corruption`, or what the disk raises."""
    data = memoryview(_read(files, name, pace))
    header = decode_segment_header(bytes(data[:SEGMENT_HEADER_BYTES]), name)
    bound = first_sequence_in(after)
    scan = walk(data, header, name, stop_before=bound)
    check_sealed(name, header.first_sequence, scan, bound)
