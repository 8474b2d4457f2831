"""A new life for a data directory: a checkpoint of all that it holds, and a journal that begins behind it.

After a repair or a restore the journal's past is not what readers of the feed may have seen of it. So
the state is written out whole, under a new incarnation: positions from before answer `gone`, and
nothing of the old journal is needed any more.

The manifest's switch is the moment at which it counts. The new journal's first segment lies ready
below ``rebased/`` before that; afterwards the old segments go to ``lost+found/`` and the new one takes
its place. A crash in between leaves both, the directory doesn't open, and `finish` completes it.

The caller has the directory's lock.
"""

from __future__ import annotations

import secrets

from fasti.core import checkpoint
from fasti.core.checkpoint import BeginCheckpoint
from fasti.core.engine import Engine
from fasti.errors import Corruption
from fasti.storage.blocks import BlockStore
from fasti.storage.checkpoint import CheckpointWriter
from fasti.storage.files import Files
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.journal_recovery import segment_names
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    SegmentHeader,
    give_birth,
    read_segment_header,
    segment_name,
)
from fasti.storage.frames import HEADER_BYTES
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads

REBASED = "rebased"
LOST_AND_FOUND = "lost+found"
# While this file is there a repair is under way, or was interrupted.
MARKER = "REPAIR"
# While this file is there a restore is under way, or was interrupted.
RESTORING_NAME = "RESTORING"
# A directory with this file is a backup.
BACKUP_NAME = "BACKUP"
_REFUSALS = {
    MARKER: "a repair of this directory was interrupted; run `fasti storage repair --apply` again",
    RESTORING_NAME: "a restore into this directory was interrupted; run `fasti restore` again",
    BACKUP_NAME: "this is a backup, which opening would change; `fasti restore` makes a data directory of it",
}


def refuse_unfinished(files: Files) -> None:
    """Raises `Corruption` if a directory is not one to be opened; called by every opening."""
    for name, message in _REFUSALS.items():
        if files.exists(name):
            raise Corruption(message, file=name, offset=0)


def rebase(
    files: Files,
    engine: Engine,
    payloads: Payloads,
    manifest: Manifest,
    version: int,
    epoch: int,
    keep_journal: bool = True,
) -> Manifest:
    """Writes what the engine holds as a directory of its own, in place of what was there.

    ``epoch`` is one that no block and no frame has yet (`Manifest.next_epoch`).

    The old journal goes to ``lost+found/``, unless the caller has another copy of it.
    """
    blocks: BlockStore = FileBlocks(files)
    whole = BeginCheckpoint(engine.state.next_frame, [])
    plan = checkpoint.begin(engine, whole, engine.state.last_at_us)
    writer = CheckpointWriter(blocks, payloads, manifest, plan, lambda _: None, epoch)
    try:
        written = writer.write().manifest
        written.incarnation = secrets.randbits(63)
        _prepare_journal(files, written, epoch)
    except BaseException:
        writer.withdraw()
        raise
    blocks.switch_manifest(version, written.encode())
    finish(files, written, keep_journal)
    return written


def _prepare_journal(files: Files, manifest: Manifest, epoch: int) -> None:
    """A segment without frames: it remembers where the journal goes on."""
    for leftover in files.list(f"{REBASED}/"):
        files.delete(leftover)
    spare = f"{REBASED}/spare"
    files.create(spare, SEGMENT_HEADER_BYTES + HEADER_BYTES).close()
    first = manifest.position + 1
    place = (manifest.incarnation, first, manifest.position)
    header = SegmentHeader(epoch, *place, secrets.randbits(32))
    segment = give_birth(files, spare, segment_name(REBASED, first), header, [])
    segment.let_go()
    segment.file.close()


def finish(files: Files, manifest: Manifest, keep_journal: bool = True) -> bool:
    """Completes a rebase whose manifest is in force; True if there was something to do."""
    names = segment_names(files, REBASED) if files.list(f"{REBASED}/") else []
    if not names or read_segment_header(files, names[0]).incarnation != manifest.incarnation:
        return False
    for name in files.list("journal/"):
        if name.endswith(SEGMENT_SUFFIX) and keep_journal:
            _set_aside(files, name)
        else:
            files.delete(name)
    (new,) = names
    files.rename(new, segment_name("journal", manifest.position + 1))
    files.sync_directory("journal")
    files.sync_directory(REBASED)
    return True


def _set_aside(files: Files, name: str) -> None:
    stem, number = name.rpartition("/")[2], 0
    while files.exists(f"{LOST_AND_FOUND}/{stem}.{number}"):
        number += 1
    files.rename(name, f"{LOST_AND_FOUND}/{stem}.{number}")
    files.sync_directory(LOST_AND_FOUND)
    files.sync_directory("journal")
