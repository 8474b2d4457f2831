"""Spare segments and trimmed ones on a disk that fails: nothing is left behind, nothing forgotten."""

from __future__ import annotations

import errno

import pytest

from fasti.errors import FastiError, StorageFull
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_table import Spares
from fasti.storage.frames import Frame
from fasti.testing.disk import SimulatedFiles

SEGMENT_BYTES = 4096
BODY = b"x" * 900


def filled() -> tuple[SimulatedFiles, FileJournal]:
    """A journal of several segments."""
    files = SimulatedFiles()
    journal = FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7)
    for sequence in range(1, 20):
        journal.append([Frame(sequence, sequence, True, True, [BODY])])
        journal.sync()
    return files, journal


def segments(files: SimulatedFiles) -> list[str]:
    return [name for name in files.list("journal/") if name.endswith(".segment")]


def test_a_spare_that_could_not_be_named_is_not_left_on_the_disk() -> None:
    files = SimulatedFiles()
    spares = Spares(files, "journal", SEGMENT_BYTES, reserve=1)
    for _ in range(3):
        files.fail("rename", 1, errno.ENOSPC)
        with pytest.raises(StorageFull):
            spares.prepare()
    assert files.list("journal/") == []
    assert spares.prepare()
    assert spares.count == 1


@pytest.mark.parametrize("kind", ["rename", "delete", "sync_directory"])
@pytest.mark.parametrize("kept", [0, 4])
def test_a_trimmed_segment_that_could_not_go_goes_first_the_next_time(kind: str, kept: int) -> None:
    files, journal = filled()
    # With few to be kept they are deleted, else renamed.
    journal._spares.kept_max = journal._spares.count + kept
    names = segments(files)
    assert len(names) > 4
    files.fail(kind, 2)
    try:
        journal.trim(journal.last_sequence)
    except FastiError:
        left = segments(files)
        # What is left has no hole: a journal that is opened now reads it.
        assert left == names[-len(left) :]
        copy = FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7)
        assert [frame.sequence for frame in copy.replay(copy.first_sequence - 1)][-1] == 19
        copy.close()
    files.heal()
    journal.trim(journal.last_sequence)
    assert len(segments(files)) == 1
    # As many spares on the disk as the journal knows of.
    on_disk = [name for name in files.list("journal/") if "spare-" in name]
    assert len(on_disk) == journal._spares.count
