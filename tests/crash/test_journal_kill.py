"""A real process that is killed while it appends to a real disk.

The machine stays up, so this is no test of syncs; it is one of the files, maps and locks of a
real operating system, which the simulated disk can only imitate.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fasti.storage.files import LocalFiles
from fasti.storage.files.journal import FileJournal

WRITER = """
import sys
from fasti.storage.files import LocalFiles
from fasti.storage.files.journal import FileJournal, Frame

files = LocalFiles(sys.argv[1])
lock = files.lock()
journal = FileJournal(files, segment_bytes=1 << 16)
while True:
    first = journal.last_sequence + 1
    journal.append([
        Frame(n, n, n == first, n == first + 2, [b"%d " % n, b"x" * (n * 37 % 5000)])
        for n in range(first, first + 3)
    ])
    print(journal.sync(), flush=True)
    journal.trim(first - 200)
    journal.prepare_spare()
"""


def run_until_killed(folder: Path, lines: int) -> int:
    """Start a writer, kill it after so many acknowledgements; the last one that it gave."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            assert writer.stdout.readline()
        writer.kill()
        rest = writer.stdout.read().splitlines(keepends=True)
    whole = [int(line) for line in rest if line.endswith(b"\\n")]
    return whole[-1] if whole else 0


def test_what_was_acknowledged_survives_kill(tmp_path: Path) -> None:
    last = 0
    for lines in (3, 50, 1, 120):
        acknowledged = run_until_killed(tmp_path, lines)
        files = LocalFiles(tmp_path)
        lock = files.lock()  # The dead don't hold it.
        journal = FileJournal(files, segment_bytes=1 << 16)
        assert journal.last_sequence >= max(acknowledged, last + 3 * lines)
        assert journal.last_sequence % 3 == 0
        last = journal.last_sequence
        first = journal.first_sequence
        seen = 0
        for seen, frame in enumerate(journal.replay(first - 1), first):
            assert frame.sequence == seen
            assert frame.body == b"%d " % seen + b"x" * (seen * 37 % 5000)
        assert seen == last
        journal.close()
        lock.release()
