"""Repairing a data directory: afterwards it opens, and it is known what was lost.

First the journal is made readable (journal_repair.py): it is cut before the first damaged frame, or damaged
frames are given up. Then what is left is read into an engine (salvage.py), which tells what the
missing frames cost, and the directory begins a new life with that (rebase.py): under a new incarnation,
so that positions from before answer `gone`, and with a journal that needs none of the old one.

A file ``REPAIR`` stands from the first change to the last. While it is there the directory doesn't
open; a repair that was interrupted is run again, and goes on where it was.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fasti.errors import Corruption, FastiError
from fasti.storage.blocks import MANIFEST_NAME
from fasti.storage.files import Files, read_whole, rebase
from fasti.storage.files.blocks import MANIFEST_PATH, FileBlocks
from fasti.storage.files.journal_survey import survey
from fasti.storage.files.overlay_files import OverlayFiles
from fasti.storage.files.rebase import LOST_AND_FOUND, MARKER
from fasti.storage.manifest import Manifest
from fasti.storage.recovery import delete_leftovers
from fasti.storage.tools.at_rest import open_journal, read_manifest
from fasti.storage.tools.inspect import check_objects
from fasti.storage.tools.journal_repair import Action, Step, carry_out, plan_repair
from fasti.storage.tools.losses import Losses
from fasti.storage.tools.salvage import Salvage
from fasti.storage.tools.salvage_blocks import is_repairable


@dataclass(slots=True)
class Repair:
    """What was done, or would be, and what it costs."""

    actions: list[Action] = field(default_factory=list)
    losses: Losses | None = None


def repair_directory(files: Files, *, allow_gap: bool = False, dry_run: bool = True) -> Repair:
    """Makes a damaged directory one that opens.

    Raises `Corruption` if that is beyond it (a damaged block or manifest), and changes nothing then;
    `DataDirLocked` when a broker runs. A dry run changes nothing and takes no lock; it tells what the
    repair would cost.
    """
    if dry_run:
        return _try_out(files, allow_gap)
    lock = files.lock()
    try:
        return _repair(files, allow_gap)
    finally:
        lock.release()


def _repair(files: Files, allow_gap: bool) -> Repair:
    stored = read_manifest(files)
    marker = _read_marker(files)
    if stored is not None and marker and marker["incarnation"] != str(stored[1].incarnation):
        # It was interrupted when all was decided.
        rebase.finish(files, stored[1])
        _unmark(files)
        losses = Losses()
        losses.note(
            "a repair was interrupted at its very end and is complete now; what was lost "
            "it could not tell any more: see the old journal below lost+found"
        )
        return Repair([_rebase_action()], losses)
    steps, damaged, is_needed = _plan(files, stored, allow_gap)
    if stored is None or not is_needed:
        return Repair(carry_out(steps))
    if marker is None:
        marker = {
            "incarnation": str(stored[1].incarnation),
            "cut_frames": _cut_frames(files, [action for action, _ in steps]),
        }
        files.replace(MARKER, json.dumps(marker).encode())
    actions = carry_out(steps)
    losses = _salvage(files, *stored, marker["cut_frames"], damaged)
    _unmark(files)
    return Repair([*actions, *_drop_actions(damaged), _rebase_action()], losses)


def _try_out(files: Files, allow_gap: bool) -> Repair:
    """What a repair would do and cost: it is done in memory, up to the point where it would count."""
    stored = read_manifest(files)
    trial = OverlayFiles(files)
    steps, damaged, is_needed = _plan(trial, stored, allow_gap)
    if stored is None or not is_needed:
        return Repair([action for action, _ in steps])
    cut_frames = _cut_frames(trial, [action for action, _ in steps])
    actions = [*carry_out(steps), *_drop_actions(damaged), _rebase_action()]
    with open_journal(trial) as journal:
        salvage = Salvage(FileBlocks(trial), journal, stored[1], damaged)
        return Repair(actions, salvage.read(stored[0], cut_frames))


def _salvage(
    files: Files,
    version: int,
    manifest: Manifest,
    cut_frames: int | None,
    damaged: frozenset[str],
) -> Losses:
    blocks = FileBlocks(files)
    with open_journal(files) as journal:
        salvage = Salvage(blocks, journal, manifest, damaged)
        # What an earlier try wrote would be in the way.
        delete_leftovers(blocks, manifest, salvage.epoch)
        losses = salvage.read(version, cut_frames)
        _save_blocks(files, damaged)
        place = (salvage.manifest, version, salvage.epoch)
        rebase.rebase(files, salvage.engine, salvage.payloads, *place)
        return losses


def _save_blocks(files: Files, damaged: frozenset[str]) -> None:
    """Damaged blocks, and what belongs to them, are copied before they go."""
    stems = {name.partition(".")[0] for name in damaged}
    for name in files.list("blocks/"):
        stem = name.rpartition("/")[2]
        # What can't be read is left behind: a bad sector can't be copied.
        with suppress(FastiError):
            if stem.partition(".")[0] in stems:
                files.replace(f"{LOST_AND_FOUND}/{stem}", read_whole(files, name))


def _read_marker(files: Files) -> dict[str, Any] | None:
    if not files.exists(MARKER):
        return None
    marker: dict[str, Any] = json.loads(read_whole(files, MARKER))
    return marker


def _unmark(files: Files) -> None:
    files.delete(MARKER)
    files.sync_directory("")


def _plan(
    files: Files, stored: tuple[int, Manifest] | None, allow_gap: bool
) -> tuple[list[Step], frozenset[str], bool]:
    """What to do to the journal, which blocks to give up, and whether the directory must begin
    anew afterwards.
    """
    if stored is None:
        return plan_repair(files, allow_gap), frozenset(), True
    position = stored[1].position
    steps = plan_repair(files, allow_gap, position)
    is_needed = any(action.kind != "rebuild_header" for action, _ in steps)
    is_needed = is_needed or files.exists(MARKER) or _has_gap(files, position)
    damaged = _damaged_blocks(files, stored[1], allow_gap)
    return steps, damaged, is_needed or bool(damaged)


def _has_gap(files: Files, position: int) -> bool:
    """Whether an earlier repair left a gap, or frames behind the blocks are missing."""
    journal = survey(files, "journal")
    if any(f.kind == "void_frame" and (f.sequence or 0) > position for f in journal.findings):
        return True
    if not journal.segments:
        return position > 0
    first, last = journal.segments[0], journal.segments[-1]
    return first.first > position + 1 or last.first + last.frames - 1 < position


def _damaged_blocks(files: Files, manifest: Manifest, allow_gap: bool) -> frozenset[str]:
    """Blocks to give up. Raises `Corruption` if that was not asked for, or would not do."""
    damaged = set()
    for finding in check_objects(files, manifest):
        if finding.harmless:
            continue
        name = finding.file.removeprefix("blocks/")
        can_go = name != MANIFEST_NAME and is_repairable(manifest, name)
        if not can_go or not allow_gap:
            remedy = "restore the directory from a backup"
            if can_go:
                remedy += ", or give up what it holds with --allow-gap"
            raise Corruption(
                f"{finding.file}: {finding.message}; {remedy}",
                file=finding.file,
                offset=finding.offset,
            )
        damaged.add(name)
    return frozenset(damaged)


def _drop_actions(damaged: frozenset[str]) -> list[Action]:
    message = "go on without it"
    return [Action("drop_block", f"blocks/{name}", 0, message) for name in sorted(damaged)]


def _cut_frames(files: Files, actions: list[Action]) -> int | None:
    """How many frames a cut costs, as far as what lies behind it lets one tell."""
    cuts = [action.first_lost for action in actions if action.kind == "cut"]
    if not cuts or cuts[0] is None:
        return None
    journal = survey(files, "journal")
    ends = [segment.first + segment.frames for segment in journal.segments]
    damages = [damage for segment in journal.segments for damage in segment.damages]
    ends += [(damage.last or damage.first) + 1 for damage in damages]
    return max(max(ends) - cuts[0], 1)


def _rebase_action() -> Action:
    message = "write what is left as a directory of its own, under a new incarnation"
    return Action("rebase", MANIFEST_PATH, 0, message)
