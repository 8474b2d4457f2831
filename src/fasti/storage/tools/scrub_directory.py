"""A scrub of a whole directory, whether a broker has it open or not. One thread; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fasti.errors import NotFound
from fasti.storage.damages import ScrubFinding
from fasti.storage.files import Files
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.journal_survey import survey
from fasti.storage.files.scrub import scrub, total_bytes
from fasti.storage.manifest import Manifest
from fasti.storage.tools.inspect import ReadOnlyFiles, holder


def scrub_directory(
    files: Files,
    progress: Callable[[int, int], None] | None = None,
    bytes_per_s: int = 0,
) -> dict[str, Any]:
    """A pass over a directory, whether a shard has it open or not. Raises `NotFound`, `Corruption`."""
    blocks = FileBlocks(ReadOnlyFiles(files))
    found = blocks.read_manifest()
    if found is None:
        raise NotFound("blocks/MANIFEST is not there: no shard was ever opened here")
    manifest = Manifest.decode(found[1])
    is_open = holder(files) is not None
    total, done, begin = total_bytes(files, manifest), 0, time.monotonic()

    def pace(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(done, max(done, total))
        if bytes_per_s:
            time.sleep(max(0.0, begin + done / bytes_per_s - time.monotonic()))

    findings = list(scrub(files, blocks, manifest, pace, journal=is_open))
    if not is_open:
        # Nobody writes: the whole journal can be judged, to its end.
        findings += [
            ScrubFinding(each.file, each.offset, each.message)
            for each in survey(files, "journal").findings
            if not each.harmless
        ]
    named = {finding.file for finding in findings if finding.file.startswith("blocks/")}
    if is_open and named:
        # A checkpoint may have put some out of force meanwhile.
        after = blocks.read_manifest()
        in_force = set() if after is None else Manifest.decode(after[1]).names
        findings = [f for f in findings if f.file not in named or f.file[7:] in in_force]
    return {
        "read_bytes": done,
        "total_bytes": max(done, total),
        "findings": [finding.to_dict() for finding in findings],
    }
