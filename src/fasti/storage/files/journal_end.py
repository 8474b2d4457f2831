"""The end of a journal as it was last synced, written down beside the segments.

Frames say what had been synced before them, so nothing in the segments knows of the last ones: a
file that was cut or zeroed from there on, or a newest segment that is gone, would look as if they
had never been written. So after every sync the journal writes into ``journal/END`` how far it
reached: in which segment, to which frame, at which offset. It is not synced with every commit, for
that would double the price of one, but when the journal falls idle, about each second under load,
and when it is closed.

What follows from that. A killed process leaves the exact end, for the operating system has it; so
does one that was closed. Only after a power cut the end may be as old as its last sync, and then
frames behind it are vouched for by nothing but later frames.

The rules that keep a sound journal from being taken for a damaged one:

* An end is written after the sync of which it tells: it never says too much.
* It speaks of one segment, by its first sequence, epoch and nonce. A segment that is newer, by
  epoch or by first sequence, was begun when all before it was durable, and the end says nothing more.
* Before a segment is removed that an end may speak of, other than from the front, the end is
  lowered, durably and in both slots.
* A file that is missing, or that can't be read, says nothing. One that can't be written is given up
  until the next segment: it then says less than it could, and never too much.

The file has two slots of 72 bytes, at 0 and at 512, which are written in turn; the one with the
higher serial counts::

    offset  size  field
         0     8  magic            "FASTIEND"
         8     4  format version   1
        12     4  epoch            of the segment
        16     8  incarnation      of the segment
        24     8  first sequence   of the segment
        32     8  last sequence    that was synced
        40     8  offset           in the segment, behind that frame
        48     4  nonce            of the segment
        52     4  zeros            for later formats
        56     8  serial           +1 with each write
        64     8  checksum         XXH3-64 of the 64 bytes before it

Thread-safety: none; an `EndFile` belongs to the committer, as the journal's active segment does.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from fasti.errors import FastiError, NotFound
from fasti.storage.files import File, Files, read_whole

END_NAME = "END"
_FORMAT_VERSION = 1
_MAGIC = b"FASTIEND"
_FIELDS = struct.Struct("<8sIIQQQQI4xQ")
_CHECKSUM = struct.Struct("<Q")
_SLOT_BYTES = 512
_FILE_BYTES = 2 * _SLOT_BYTES


class SyncedEnd(NamedTuple):
    """How far a journal was synced: up to ``last_sequence``, which ends at ``offset``."""

    epoch: int
    incarnation: int
    first_sequence: int
    last_sequence: int
    offset: int
    nonce: int

    def is_superseded_by(self, epoch: int, first_sequence: int) -> bool:
        """Whether such a segment, if it is the newest, makes this end say nothing."""
        return epoch > self.epoch or first_sequence > self.first_sequence


def end_name(directory: str) -> str:
    """The file name of a journal's end."""
    return f"{directory}/{END_NAME}"


def encode_end(end: SyncedEnd, serial: int) -> bytes:
    """The content of a slot."""
    fields = _FIELDS.pack(_MAGIC, _FORMAT_VERSION, *end, serial)
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))


def decode_ends(data: bytes) -> tuple[int, SyncedEnd | None]:
    """The highest serial in a file's slots and its end; 0 and None if no slot can be read."""
    best: tuple[int, SyncedEnd | None] = (0, None)
    for start in (0, _SLOT_BYTES):
        slot = data[start : start + _FIELDS.size + _CHECKSUM.size]
        if len(slot) < _FIELDS.size + _CHECKSUM.size:
            continue
        fields = slot[: _FIELDS.size]
        if _CHECKSUM.unpack_from(slot, _FIELDS.size)[0] != xxh3_64_intdigest(fields):
            continue
        magic, version, *values, serial = _FIELDS.unpack(fields)
        if magic == _MAGIC and version == _FORMAT_VERSION and serial > best[0]:
            best = serial, SyncedEnd(*values)
    return best


def read_end(files: Files, directory: str) -> SyncedEnd | None:
    """How far a journal was synced, as far as that was written down; changes nothing."""
    return _read(files, end_name(directory))[1]


def _read(files: Files, name: str) -> tuple[int, SyncedEnd | None]:
    try:
        return decode_ends(read_whole(files, name, _FILE_BYTES))
    except FastiError:
        return 0, None


class EndFile:
    """The file of an open journal. Nothing is written or made before `prepare` or `lower`."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._name = end_name(directory)
        self._file: File | None = None
        self._serial = 0
        self._is_synced = True
        # Why nothing is written any more.
        self.problem: str | None = None

    def prepare(self) -> None:
        """Make or open the file, also after it was given up: each new segment is a new try.

        The caller syncs the folder's names before it writes an end.
        """
        if self._file is not None:
            return
        try:
            self._open()
            self.problem = None
        except FastiError as error:
            self._give_up(error)

    def _open(self) -> None:
        self._serial = _read(self._files, self._name)[0]
        try:
            self._file = self._files.open(self._name, writable=True)
        except NotFound:
            self._file = self._files.create(self._name, _FILE_BYTES)

    def write(self, end: SyncedEnd) -> None:
        """The journal was synced up to there; durable after `sync`. Raises nothing of the disk's."""
        if self._file is None:
            return
        try:
            self._write_slot(self._file, end)
            self._is_synced = False
        except FastiError as error:
            self._give_up(error)

    def _write_slot(self, file: File, end: SyncedEnd) -> None:
        self._serial += 1
        file.write_at(self._serial % 2 * _SLOT_BYTES, [encode_end(end, self._serial)])

    def sync(self) -> bool:
        """Make the last `write` durable; False if that was done. Raises nothing of the disk's."""
        if self._file is None or self._is_synced:
            return False
        try:
            self._file.sync()
            self._is_synced = True
        except FastiError as error:
            self._give_up(error)
        return True

    def lower(self, end: SyncedEnd) -> None:
        """Take back what the file says beyond ``end``; durable on return, or raises."""
        if not self._files.exists(self._name):
            return
        try:
            self._open()
            assert self._file is not None
            for _ in range(2):
                self._write_slot(self._file, end)
            self._file.sync()
        except FastiError as error:
            self._give_up(error)
            self._files.delete(self._name)
            self._files.sync_directory(self._directory)

    def _give_up(self, error: FastiError) -> None:
        self.problem = error.message
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(FastiError):
                file.close()
