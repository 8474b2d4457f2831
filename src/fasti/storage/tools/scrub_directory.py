"""A scrub of a whole directory, whether a broker has it open or not. One thread; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fasti.storage.damages import ScrubFinding
from fasti.storage.files import Files
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.journal_survey import survey
from fasti.storage.files.overlay_files import OverlayFiles
from fasti.storage.files.scrub import scrub, total_bytes
from fasti.storage.tools.at_rest import existing_manifest, holder


def scrub_directory(
    files: Files,
    progress: Callable[[int, int], None] | None = None,
    bytes_per_s: int = 0,
) -> dict[str, Any]:
    """A pass over a directory, whether a shard has it open or not. Raises `NotFound`, `Corruption`."""
    blocks, (_, manifest) = FileBlocks(OverlayFiles(files)), existing_manifest(files)
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
        # No broker writes: the whole journal can be judged, to its end.
        findings += [
            ScrubFinding(finding.file, finding.offset, finding.message)
            for finding in survey(files, "journal").findings
            if not finding.harmless
        ]
    named = {finding.file for finding in findings if finding.file.startswith("blocks/")}
    if is_open and named:
        # A checkpoint may have put some out of force meanwhile.
        in_force = {f"blocks/{name}" for name in existing_manifest(files)[1].names}
        findings = [f for f in findings if f.file not in named or f.file in in_force]
    return {
        "read_bytes": done,
        "total_bytes": max(done, total),
        "findings": [finding.to_dict() for finding in findings],
    }
