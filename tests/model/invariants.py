"""What must hold in every state of the leadership model."""

from __future__ import annotations

from fasti.cluster.pack_reader import PackReader
from tests.model.world import Entry, FrameId, World


class Violation(Exception):
    """An invariant does not hold, or a machine's own assertion failed."""


def check(world: World) -> None:
    whole = replay((), PackReader(), world.stream)
    check_pointer(world)
    if world.pointer is not None and world.pointer.manifest:
        manifest = world.manifest(world.pointer.manifest)
        tail = world.stream[manifest.sequence :]
        if replay(manifest.frames, manifest.reader, tail) != whole:
            raise Violation("a replay from the manifest is not the replay from the beginning")
    for acknowledgement in world.acknowledged:
        for frame in acknowledgement.frames:
            if whole[frame.number - 1 : frame.number] != (frame,):
                raise Violation(f"{frame} was acknowledged and is not in the replay at its place")
    for frame in world.moved:
        if frame in whole:
            raise Violation(f"{frame} was answered with `moved` and is in the replay")
    check_epochs(world)


def check_pointer(world: World) -> None:
    """The manifest's blocks are there, and so is the journal behind it."""
    sequence = world.pointer.sequence if world.pointer else 0
    if world.trimmed > sequence:
        raise Violation(f"the stream is trimmed to {world.trimmed}, the manifest is of {sequence}")
    if world.pointer is not None and world.pointer.manifest:
        missing = world.manifest(world.pointer.manifest).blocks - world.blocks
        if missing:
            raise Violation(f"the pointer's manifest names blocks that are gone: {sorted(missing)}")


def check_epochs(world: World) -> None:
    """What an epoch acknowledged stands before every start of a higher one, and epochs don't mix."""
    for acknowledgement in world.acknowledged:
        for entry in world.stream[: acknowledgement.sequence]:
            if entry.header.is_start and entry.header.epoch > acknowledgement.epoch:
                raise Violation(
                    f"{acknowledgement} stands behind the start of {entry.header.epoch}"
                )
    for place, ended in enumerate(world.stream):
        later = (entry.header for entry in world.stream[place + 1 :])
        if ended.header.is_end and any(header.has_writer_of(ended.header) for header in later):
            raise Violation(f"{ended.header} was not its leader's last pack")
    order = [item.epoch for item in sorted(world.acknowledged)]
    if order != sorted(order):
        raise Violation(f"two leaders' packs were acknowledged in turn: {order}")


def replay(
    frames: tuple[FrameId, ...], reader: PackReader, entries: tuple[Entry, ...]
) -> tuple[FrameId, ...]:
    """What a reader has applied at the end: frames of finished groups."""
    held: tuple[FrameId, ...] = ()
    for entry in entries:
        verdict, reader = reader.take(entry.header)
        if verdict.what == "hole":
            raise Violation(f"a reader finds a hole before {entry.header}")
        if verdict.what == "counts":
            frames, held = apply(frames, held, entry, verdict.drop_from)
    return frames


def apply(
    frames: tuple[FrameId, ...], held: tuple[FrameId, ...], entry: Entry, drop_from: int | None
) -> tuple[tuple[FrameId, ...], tuple[FrameId, ...]]:
    """A pack that counts: frames of a group are held until the group is finished."""
    if drop_from is not None:
        if frames and frames[-1].number >= drop_from:
            raise Violation(f"frame {frames[-1].number} of a finished group is dropped")
        held = tuple(frame for frame in held if frame.number < drop_from)
    held = (*held, *entry.frames)
    return ((*frames, *held), ()) if entry.whole else (frames, held)
