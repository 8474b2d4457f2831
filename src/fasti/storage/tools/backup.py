"""Backups: what a data directory holds at one position, as a directory that can be restored.

A backup has the layout of a data directory: the blocks that the manifest names, the manifest, and one
segment with the journal's frames behind it, up to the position of the backup. Blocks never change and
no name serves twice, so a second backup into the same directory brings only what is new.

A file ``BACKUP`` says what belongs to it, with sizes and checksums. It is written last: a directory
without it is no backup yet, and the next run completes it. Until the new files are all there the old
``BACKUP`` stays good; the manifest and the segment take their places in the short moment between its
end and the next one's beginning. ``BACKUP.partial`` tells whose backup is under way.

A *source* is what is backed up: an open store, inside a broker; a directory that no broker has open; or
a broker at an address (client/backups.py). All give the same pieces. One thread each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from fasti.errors import Corruption, InvalidArgument
from fasti.storage.blocks import BlockStore
from fasti.storage.files import File, Files, LocalFiles, read_whole
from fasti.storage.files.blocks import MANIFEST_PATH, encode_manifest
from fasti.storage.files.journal_segment import (
    SegmentHeader,
    encode_segment_header,
    segment_name,
    walk,
)
from fasti.storage.files.overlay_files import OverlayFiles
from fasti.storage.files.rebase import BACKUP_NAME, refuse_unfinished
from fasti.storage.formats import check_format
from fasti.storage.frames import (
    BEGIN,
    END,
    FORMAT_VERSION,
    Header,
    StoredFrame,
    body_checksum,
    encode_header,
    padding,
)
from fasti.storage.journal import JournalReader
from fasti.storage.manifest import Manifest
from fasti.storage.seals import open_seal
from fasti.storage.shard_folders import open_folders, read_folders
from fasti.storage.tools.at_rest import existing_files, open_directory

BACKUP_FORMAT_VERSION = 1
PARTIAL_NAME = f"{BACKUP_NAME}.partial"
CHUNK_BYTES = 1 << 20
JOURNAL = "journal"
_NEW = ".new"
_TEMPORARY = ".tmp"
_NONCE = 1

Progress = Callable[[int, int], None]


class Chunk(NamedTuple):
    """A piece of a file: which one, where in it, and the bytes."""

    name: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source has at the moment of the backup."""

    # The incarnation, in hexadecimal digits.
    shard: str
    # The blocks tell everything up to `position`, the journal goes on to `last`.
    position: int
    last: int
    at_us: int
    # Names of blocks and their sizes.
    blocks: dict[str, int]
    manifest: bytes
    # What the journal's frames take, about.
    journal_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "shard": self.shard,
            "position": self.position,
            "last": self.last,
            "at_us": self.at_us,
            "journal_bytes": self.journal_bytes,
            "blocks": self.blocks,
        }

    @property
    def segment(self) -> str:
        """The name of the segment with the frames."""
        return segment_name("journal", self.position + 1)


class Source(Protocol):
    """Where a backup comes from."""

    listing: Listing

    def read(self, names: Sequence[str]) -> Iterator[Chunk]:
        """These blocks, or `JOURNAL`, in order, piece by piece."""


@dataclass(slots=True)
class Backup:
    """A backup that is complete."""

    path: str
    shard: str
    # The last frame that it has: everything acknowledged before it began is in it.
    position: int
    at_us: int
    files: int
    size_bytes: int
    # What this run brought; the rest was there.
    copied_bytes: int
    # Payload blocks that are damaged where they come from: copied as they are, and reported.
    damaged: list[str] = field(default_factory=list)
    # Of several shards, by number: all together are in the fields above, but `position`, which is 0.
    shards: list[Backup] = field(default_factory=list)

    @classmethod
    def of_shards(cls, path: Path, parts: list[Backup]) -> Backup:
        """Those of all shards as one."""
        damaged = [
            f"shard-{number}/{name}" for number, part in enumerate(parts) for name in part.damaged
        ]
        return cls(
            str(path),
            ",".join(part.shard for part in parts),
            0,
            min(part.at_us for part in parts),
            sum(part.files for part in parts),
            sum(part.size_bytes for part in parts),
            sum(part.copied_bytes for part in parts),
            damaged,
            parts,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values = asdict(self)
        if not self.shards:
            del values["shards"]
        return values


# Sources


class StoredSource:
    """Blocks and journal of a directory in this process. Its maker keeps them from being deleted."""

    def __init__(
        self,
        blocks: BlockStore,
        journal: JournalReader,
        manifest: Manifest,
        version: int,
        at_us: int,
        journal_bytes: int,
    ) -> None:
        self._blocks, self._journal, self._manifest = blocks, journal, manifest
        last = max(journal.finished_sequence, manifest.position)
        self.listing = Listing(
            f"{manifest.incarnation:016x}",
            manifest.position,
            last,
            at_us,
            {name: blocks.size(name) for name in sorted(manifest.names)},
            encode_manifest(version, manifest.encode()),
            journal_bytes,
        )

    def read(self, names: Sequence[str]) -> Iterator[Chunk]:
        """Pieces of at most a mebibyte, or one frame."""
        for name in names:
            if name == JOURNAL:
                yield from self._read_journal()
                continue
            size = self.listing.blocks[name]
            for offset in range(0, max(size, 1), CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - offset)
                yield Chunk(name, offset, bytes(self._blocks.get(name, offset, length)))

    def _read_journal(self) -> Iterator[Chunk]:
        """The frames as one segment of their own."""
        listing, incarnation = self.listing, self._manifest.incarnation
        place = (incarnation, listing.position + 1, listing.last)
        gathered = [encode_segment_header(SegmentHeader(1, *place, _NONCE))]
        offset, size = 0, len(gathered[0])
        for frame in self._journal.replay(listing.position):
            if frame.sequence > listing.last:
                break
            piece = _encoded(frame, incarnation)
            gathered.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                yield Chunk(JOURNAL, offset, b"".join(gathered))
                offset, size, gathered = offset + size, 0, []
        yield Chunk(JOURNAL, offset, b"".join(gathered))


def _encoded(frame: StoredFrame, incarnation: int) -> bytes:
    """A frame as the segment of a backup has it."""
    body = bytes(frame.body)
    flags = (BEGIN if frame.begins_group else 0) | (END if frame.ends_group else 0)
    header = Header(
        version=FORMAT_VERSION,
        flags=flags,
        body_length=len(body),
        epoch=1,
        incarnation=incarnation,
        sequence=frame.sequence,
        synced_through=frame.sequence - 1,
        at_us=frame.at_us,
        body_checksum=body_checksum([body]),
        nonce=_NONCE,
    )
    return encode_header(header) + body + padding(len(body))


@contextmanager
def directory_source(path: Path) -> Iterator[StoredSource]:
    """A data directory that no broker has open; it is locked meanwhile, and not changed.

    Raises `DataDirLocked` beside a broker, `NotFound` where none ever ran, `Corruption` if it can't be read.
    """
    files = existing_files(path)
    lock = files.lock()
    try:
        refuse_unfinished(files)
        with open_directory(OverlayFiles(files)) as stored:
            place = (stored.manifest, stored.version, time.time_ns() // 1000)
            yield StoredSource(stored.blocks, stored.journal, *place, stored.journal.size_bytes)
    finally:
        lock.release()


# Targets


def back_up(source: Source, path: Path, progress: Progress | None = None) -> Backup:
    """Brings everything of a source into a directory, which may have an older backup of the same.

    A block of payloads that is damaged where it comes from is copied as it is, and listed; an older
    backup's good copy of it stays. Raises `InvalidArgument` if the directory has something else,
    `Corruption` if another piece came damaged, and whatever source and disk raise; it can be run again then.
    """
    target = _Target(path, source.listing)
    target.begin()
    missing = target.missing()
    listing = source.listing
    total = sum(listing.blocks[name] for name in missing) + listing.journal_bytes
    done = 0
    for chunk in source.read([*missing, JOURNAL]):
        target.write(chunk)
        done += len(chunk.data)
        if progress is not None:
            progress(done, max(total, done))
    return target.finish(done)


def back_up_directory(data: Path, path: Path, progress: Progress | None = None) -> Backup:
    """A data directory that no broker has open, all of its shards. Raises as `directory_source`."""

    def take(number: int, folder: Path) -> Backup:
        with directory_source(folders.folder(number)) as source:
            return back_up(source, folder, progress)

    folders = read_folders(data)
    return take(0, path) if folders.shards == 1 else back_up_shards(path, folders.shards, take)


def back_up_shards(path: Path, count: int, take: Callable[[int, Path], Backup]) -> Backup:
    """A backup of several shards: `take(number, folder)` brings each into a folder of its own.

    The first shard comes last: it has the truth about topics, and so the backup of it knows no less of
    them than those of the others. Raises `InvalidArgument` where something else is, and what `take` raises;
    it can be run again then.
    """
    if read_folders(path).shards == 1 and path.is_dir() and any(path.iterdir()):
        raise InvalidArgument(
            f"{path} is not empty and is not a backup of {count} shards", field="path"
        )
    folders = open_folders(path, count)
    parts = {number: take(number, folders.folder(number)) for number in (*range(1, count), 0)}
    return Backup.of_shards(path, [parts[number] for number in range(count)])


class _Target:
    """A directory that becomes a backup."""

    def __init__(self, path: Path, listing: Listing) -> None:
        self._path, self._listing = path, listing
        self._files: Files = LocalFiles(path)
        self._checksums: dict[str, tuple[int, int]] = {}
        self._open: tuple[str, File] | None = None
        self._damaged: list[str] = []

    def begin(self) -> None:
        """Raises `InvalidArgument` where something else is."""
        owner = _shard_of(self._files)
        if owner is None and self._files.list(""):
            raise InvalidArgument(f"{self._path} is not empty and is not a backup", field="path")
        if owner is not None and owner != self._listing.shard:
            raise InvalidArgument(
                f"{self._path} has a backup of shard {owner}, this is {self._listing.shard}: "
                "choose another directory (a restore or repair makes another shard of it)",
                field="path",
            )
        self._files.replace(PARTIAL_NAME, json.dumps({"shard": self._listing.shard}).encode())

    def missing(self) -> list[str]:
        """Blocks that are not here yet, or not whole."""
        return [name for name in self._listing.blocks if not self._has(name)]

    def _has(self, name: str) -> bool:
        path = f"blocks/{name}"
        if not self._files.exists(path):
            return False
        file = self._files.open(path, writable=False)
        try:
            view = file.map()
            if len(view) != self._listing.blocks[name]:
                return False
            open_seal(view, name)
            self._checksums[path] = (len(view), xxh3_64_intdigest(view))
            return True
        except Corruption:
            return False
        finally:
            file.close()

    def write(self, chunk: Chunk) -> None:
        """The next piece; pieces of a file follow one another."""
        name = self._listing.segment + _NEW if chunk.name == JOURNAL else f"blocks/{chunk.name}"
        if self._open is None or self._open[0] != name:
            self._end_file()
            if self._files.exists(name + _TEMPORARY):
                self._files.delete(name + _TEMPORARY)
            self._open = name, self._files.create(name + _TEMPORARY, 0)
        self._open[1].write_at(chunk.offset, [chunk.data])

    def _end_file(self) -> None:
        """What was written is whole: it is checked, and gets its name."""
        if self._open is None:
            return
        name, file = self._open
        self._open = None
        try:
            file.sync()
            view = file.map()
            if name.startswith("blocks/"):
                self._check_block(view, name)
            self._checksums[name.removesuffix(_NEW)] = (len(view), xxh3_64_intdigest(view))
            del view
        finally:
            file.close()
        self._files.rename(name + _TEMPORARY, name)

    def _check_block(self, view: memoryview, name: str) -> None:
        """Without damaged payloads there would be no backup of all that is undamaged."""
        block = name.removeprefix("blocks/")
        try:
            open_seal(view, name)
        except Corruption:
            if not name.endswith(".payloads") or len(view) != self._listing.blocks[block]:
                raise
            self._damaged.append(name)

    def finish(self, copied_bytes: int) -> Backup:
        files, listing = self._files, self._listing
        self._end_file()
        self._check_segment(listing.segment + _NEW)
        files.replace(MANIFEST_PATH + _NEW, listing.manifest)
        digest = xxh3_64_intdigest(listing.manifest)
        self._checksums[MANIFEST_PATH] = (len(listing.manifest), digest)
        for folder in ("blocks", "journal"):
            files.sync_directory(folder)
        if files.exists(BACKUP_NAME):
            files.delete(BACKUP_NAME)
            files.sync_directory("")
        self._take_places()
        document = {
            "format": BACKUP_FORMAT_VERSION,
            **listing.to_dict(),
            "files": [[n, size, f"{d:016x}"] for n, (size, d) in sorted(self._checksums.items())],
        }
        del document["blocks"]
        files.replace(BACKUP_NAME, json.dumps(document).encode())
        self._tidy()
        return Backup(
            str(self._path),
            listing.shard,
            listing.last,
            listing.at_us,
            len(self._checksums),
            sum(size for size, _ in self._checksums.values()),
            copied_bytes,
            self._damaged,
        )

    def _check_segment(self, name: str) -> None:
        listing = self._listing
        file = self._files.open(name, writable=False)
        try:
            view = file.map()
            header = SegmentHeader(
                1, int(listing.shard, 16), listing.position + 1, listing.last, _NONCE
            )
            frames = len(walk(view, header, name, stop_before=listing.last + 1).places)
            del view
        finally:
            file.close()
        if frames != listing.last - listing.position:
            message = f"{frames} of {listing.last - listing.position} frames arrived whole"
            raise Corruption(f"{name}: {message}", file=name, offset=0)

    def _take_places(self) -> None:
        files = self._files
        for name in files.list("journal/"):
            if name != self._listing.segment + _NEW:
                files.delete(name)
        files.rename(self._listing.segment + _NEW, self._listing.segment)
        files.rename(MANIFEST_PATH + _NEW, MANIFEST_PATH)
        for folder in ("blocks", "journal"):
            files.sync_directory(folder)

    def _tidy(self) -> None:
        """Blocks that the manifest names no more go."""
        for name in self._files.list("blocks/"):
            if name not in self._checksums:
                self._files.delete(name)
        self._files.delete(PARTIAL_NAME)
        self._files.sync_directory("")


# Looking at a backup


@dataclass(slots=True)
class Description:
    """What a ``BACKUP`` file says."""

    shard: str
    position: int
    last: int
    at_us: int
    files: dict[str, tuple[int, int]] = field(default_factory=dict)


def describe(files: Files, path: str) -> Description:
    """A complete backup. Raises `Corruption` if it is incomplete, or none."""
    if not files.exists(BACKUP_NAME):
        raise Corruption(
            f"this backup is incomplete: {path} has no file {BACKUP_NAME}; run `fasti backup` into "
            "it again to complete it",
            file=BACKUP_NAME,
            offset=0,
        )
    try:
        document = json.loads(read_whole(files, BACKUP_NAME))
        check_format("the backup", document["format"], BACKUP_FORMAT_VERSION)
        listed = {name: (size, int(digest, 16)) for name, size, digest in document["files"]}
        place = (document["position"], document["last"], document["at_us"])
        return Description(document["shard"], *place, listed)
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path}/{BACKUP_NAME} can't be decoded: {error!r}"
        raise Corruption(message, file=BACKUP_NAME, offset=0) from error


def _shard_of(files: Files) -> str | None:
    """Whose backup a directory is, or becomes; None if it is none."""
    for name in (BACKUP_NAME, PARTIAL_NAME):
        if files.exists(name):
            shard: str = json.loads(read_whole(files, name))["shard"]
            return shard
    return None
