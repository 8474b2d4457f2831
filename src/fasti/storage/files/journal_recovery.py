"""Opening a journal: which segments belong to it, and where it ends.

The segments form a chain by first sequence.  A segment's frames are those below the next one's
first; what lies behind is void (a tail that was cut).  Since a segment is only born when all
before it is durable, only the last one can have a torn tail, and only that one is read here in
full; damage in an earlier one shows when its frames are read.

The tail ends at the first place that isn't the frame expected.  If anything behind that place
knew the frame to be durable, it was acknowledged and this is `Corruption`; else it was never
acknowledged, and is cut.  Then an unfinished group is cut too, for it is void, which may empty
the segment and reach into the one before.

What lies at the very end is vouched for by the file ``END`` (see `journal_end`): a newest segment that
it names and that isn't there, or whose frames don't reach as far as it says, is `Corruption` too.

A last segment without any frame stays where it is, until the next one takes its name: it tells
where the segment before it was cut, and of a lone one it is all that remembers the sequence.
Only when the end lies before it, because a group began in the segment before, must it go.

Nothing is changed on the disk here, so that a journal which can't be opened stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from fasti.errors import Corruption, Gone
from fasti.storage.files import Files
from fasti.storage.files.journal_end import SyncedEnd, read_end
from fasti.storage.files.journal_segment import (
    REMEDY,
    SEGMENT_SUFFIX,
    Segment,
    Walk,
    evidence_after,
    open_segment,
    read_through,
    segment_name,
    walk,
)
from fasti.storage.frames import ALIGNMENT, END


@dataclass(slots=True)
class Chain:
    """A journal as it is on the disk.

    ``segments`` are kept, ``void`` hold nothing that counts and are to be removed, last first.
    ``synced_sequence`` is known to be durable by the frames' own words; frames above it, up to
    ``last_sequence``, are there but may only be in the operating system's memory.
    ``cut_valid`` tells that valid frames were left out because the caller said so.
    """

    segments: list[Segment]
    void: list[Segment]
    incarnation: int | None = None
    epoch: int = 0
    last_sequence: int = 0
    synced_sequence: int = 0
    cut_valid: bool = False


def segment_names(files: Files, directory: str) -> list[str]:
    """The segment files of a journal, in order."""
    names = files.list(f"{directory}/")
    return [name for name in names if name.endswith(SEGMENT_SUFFIX)]


def read_chain(files: Files, directory: str, cut_after: int | None) -> Chain:
    """Open all segments and find the end of the journal; changes nothing.

    Raises `Corruption`, `NewerFormat`, or what the disk raises.
    """
    chain = Chain([], [])
    end = read_end(files, directory)
    try:
        for name in segment_names(files, directory):
            chain.segments.append(open_segment(files, name))
        _check_order(chain)
        _check_cut(chain, cut_after)
        if end is not None:
            end = _check_newest(chain, directory, end, cut_after)
        _find_end(files, chain, cut_after, end)
    except BaseException:
        close_chain(chain)
        raise
    return chain


def close_chain(chain: Chain) -> None:
    """Let go of all files of a chain that will not be used."""
    for segment in (*chain.segments, *chain.void):
        segment.let_go()
        segment.file.close()


def _check_order(chain: Chain) -> None:
    for before, segment in zip(chain.segments, chain.segments[1:], strict=False):
        if before.header.incarnation != segment.header.incarnation:
            reason = "belongs to another incarnation than the segment before it"
        elif before.header.epoch > segment.header.epoch:
            reason = "is of an earlier epoch than the segment before it"
        else:
            continue
        raise Corruption(f"{segment.name} {reason}", file=segment.name, offset=0)
    for segment in chain.segments:
        chain.incarnation = segment.header.incarnation
        chain.epoch = segment.header.epoch


def _check_cut(chain: Chain, cut_after: int | None) -> None:
    if cut_after is None or not chain.segments:
        return
    first = chain.segments[0].header.first_sequence
    if cut_after < first - 1:
        raise Gone(f"can't cut after {cut_after}: the journal begins with {first}")


def _check_newest(
    chain: Chain, directory: str, end: SyncedEnd, cut_after: int | None
) -> SyncedEnd | None:
    """The end, if it speaks of the newest segment; raises `Corruption` if that isn't there."""
    newest = chain.segments[-1].header if chain.segments else None
    if newest is not None:
        if newest.incarnation != end.incarnation:
            return None  # Of another life: the manifest tells which of them counts.
        if end.is_superseded_by(newest.epoch, newest.first_sequence):
            return None
        if (newest.first_sequence, newest.nonce) == (end.first_sequence, end.nonce):
            return end
    if cut_after is not None and cut_after < end.first_sequence:
        return None
    is_there = newest is not None and newest.first_sequence == end.first_sequence
    problem = "is not the file that was synced" if is_there else "is missing"
    name = segment_name(directory, end.first_sequence)
    frames = max(0, end.last_sequence - end.first_sequence + 1)
    raise Corruption(
        f"{name} {problem}: it had {frames} frames, up to {end.last_sequence}, in {end.offset} "
        f"bytes; {REMEDY}",
        file=name,
        offset=0,
        details={
            "sequence": end.first_sequence,
            "missing_frames": frames,
            "missing_bytes": end.offset,
        },
    )


def _check_reach(tail: Segment, scan: Walk, end: SyncedEnd, cut_after: int | None) -> None:
    """Raise `Corruption` if frames that were synced at the end of the newest segment are gone."""
    last = end.last_sequence if cut_after is None else min(end.last_sequence, cut_after)
    missing = tail.header.first_sequence + len(scan.places)
    if missing > last:
        return
    frames, size = last - missing + 1, max(0, end.offset - scan.end)
    raise Corruption(
        f"{tail.name} at {scan.end}: the end is missing: {frames} frames from {missing} to {last} "
        f"were synced, {size} bytes; {REMEDY}",
        file=tail.name,
        offset=scan.end,
        details={"sequence": missing, "missing_frames": frames, "missing_bytes": size},
    )


def _find_end(
    files: Files, chain: Chain, cut_after: int | None, end: SyncedEnd | None = None
) -> None:
    """Pop segments that begin inside an unfinished group; the last one left has the end."""
    bound: int | None = None
    while chain.segments:
        tail = chain.segments[-1]
        first = tail.header.first_sequence
        read_through(files, tail.name)
        scan = walk(tail.view, tail.header, tail.name, stop_before=bound)
        _check_tail(tail, scan, bound)
        if bound is None and end is not None:
            _check_reach(tail, scan, end, cut_after)
        valid_through = first + len(scan.places) - 1
        if bound is None and cut_after is not None and valid_through < cut_after:
            reason = f"frame {cut_after} is known to be durable"
            raise corrupt_frame(tail.name, scan.end, valid_through + 1, "missing", reason)
        count = _finished(scan, first, cut_after)
        chain.last_sequence = first + count - 1
        chain.cut_valid |= cut_after is not None and valid_through > cut_after
        if count or len(chain.segments) == 1 or _follows_a_group(chain, cut_after):
            _settle(chain, tail, scan, count, cut_after, bound)
            return
        bound = first
        chain.void.append(chain.segments.pop())


def _follows_a_group(chain: Chain, cut_after: int | None) -> bool:
    """Whether the frame before the last segment is the end of a group, and within the cut."""
    before, tail = chain.segments[-2:]
    bound = tail.header.first_sequence
    if cut_after is not None and cut_after < bound - 1:
        return False
    scan = walk(before.view, before.header, before.name, stop_before=bound, bodies=False)
    _check_tail(before, scan, bound)
    return bool(scan.flags[-1] & END)


def _settle(
    chain: Chain, tail: Segment, scan: Walk, count: int, cut_after: int | None, bound: int | None
) -> None:
    tail.adopt(scan.places[:count], verified=True)
    tail.end = scan.end
    sealed = bound is not None or cut_after is not None
    known = chain.last_sequence if sealed else scan.synced_through
    chain.synced_sequence = min(known, chain.last_sequence)


def _check_tail(tail: Segment, scan: Walk, bound: int | None) -> None:
    """Raise `Corruption` if the frame at which the walk ended had been acknowledged."""
    missing = tail.header.first_sequence + len(scan.places)
    durable = tail.header.durable_through
    if bound is not None:
        # Frames from the bound on were cut, and may have been durable before that.
        check_sealed(tail.name, tail.header.first_sequence, scan, bound)
        return
    if missing <= durable:
        known = True
        reason = f"the segment was born with frames up to {durable}"
    else:
        proof = evidence_after(tail.view, scan.end + ALIGNMENT, tail.header, missing)
        known = scan.problem is not None and proof is not None
        reason = f"a later frame at {proof} knew it to be durable"
    if not known:
        return
    raise corrupt_frame(tail.name, scan.end, missing, scan.problem or "the file ends", reason)


def check_sealed(name: str, first: int, scan: Walk, bound: int) -> None:
    """Raises `Corruption` if frames below the next segment's first are missing in a sealed one."""
    missing = first + len(scan.places)
    if missing < bound:
        reason = f"a later segment begins with {bound}"
        raise corrupt_frame(name, scan.end, missing, scan.problem or "the file ends", reason)


def corrupt_frame(name: str, offset: int, sequence: int, problem: str, reason: str) -> Corruption:
    """The error for a frame that was acknowledged and is damaged."""
    return Corruption(
        f"{name} at {offset}: frame {sequence} is damaged ({problem}), and {reason}",
        file=name,
        offset=offset,
        details={"sequence": sequence, "problem": problem},
    )


def _finished(scan: Walk, first: int, cut_after: int | None) -> int:
    """How many of the frames are within the cut and end with a finished group."""
    count = len(scan.places)
    if cut_after is not None:
        count = min(count, max(0, cut_after - first + 1))
    while count and not scan.flags[count - 1] & END:
        count -= 1
    return count
