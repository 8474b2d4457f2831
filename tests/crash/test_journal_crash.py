"""Every crash point of a journal's life, on a disk that loses all that a disk may lose.

A workload of appends, syncs, marks, rolls, trims and reopenings is stopped before each of its
disk operations in turn; the disk is crashed with several seeds; and the journal is opened again,
sometimes crashing a second time while it opens.  After that:

* every frame that a sync acknowledged is there, with its content;
* what else is there is a prefix of the unacknowledged frames, of whole groups, without a hole;
* the journal can be appended to, and all this holds once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from fasti.errors import FastiError, StorageFailed, StorageFull
from fasti.storage.files.journal import FileJournal
from fasti.storage.frames import Frame
from fasti.testing.disk import Crashed, SimulatedFiles
from tests.seeds import seeds

SEGMENT_BYTES = 4096


@dataclass
class Account:
    """What the workload was told, and what it would find acceptable."""

    contents: dict[int, bytes] = field(default_factory=dict)  # of frames ever sent to the journal
    group_ends: set[int] = field(default_factory=lambda: {0})
    acknowledged: int = 0
    sent: int = 0
    trimmed: int = 0

    def forget_after(self, last: int) -> None:
        """The journal was opened and ends with ``last``: what came after is void."""
        for sequence in [s for s in self.contents if s > last]:
            del self.contents[sequence]
        self.group_ends = {end for end in self.group_ends if end <= last}
        self.acknowledged = self.sent = last


def open_journal(files: SimulatedFiles, cut_after: int | None = None) -> FileJournal:
    return FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7, cut_after=cut_after)


def send(journal: FileJournal, account: Account, sizes: list[int], tag: str) -> None:
    """Append one group of frames of these sizes."""
    frames = []
    for position, size in enumerate(sizes):
        sequence = account.sent + position + 1
        body = (b"%s %d " % (tag.encode(), sequence) * (size // 4))[:size]
        account.contents[sequence] = body
        ends = position == len(sizes) - 1
        frames.append(Frame(sequence, sequence, position == 0, ends, [body[:10], body[10:]]))
    account.group_ends.add(account.sent + len(sizes))
    account.sent += len(sizes)
    # Half of the groups span two appends, so that some are cut in the middle.
    half = len(frames) // 2
    if half:
        journal.append(frames[:half])
    journal.append(frames[half:])


def acknowledge(journal: FileJournal, account: Account) -> None:
    account.acknowledged = journal.sync()


def live(files: SimulatedFiles, account: Account, tag: str) -> None:
    """The workload: some six segments, with everything that a journal does."""
    journal = open_journal(files)
    check(journal, account)
    for turn in range(14):
        send(journal, account, [30, 700 + 10 * turn][turn % 2 :], tag)
        if turn % 3 != 1:
            acknowledge(journal, account)
        if turn % 5 == 4:
            send(journal, account, [900, 20, 1500], tag)
            acknowledge(journal, account)
            journal.mark()
        if turn == 7:
            send(journal, account, [6000], tag)
            acknowledge(journal, account)
        if turn % 4 == 3:
            account.trimmed = max(account.trimmed, account.acknowledged - 6)
            journal.trim(account.trimmed)
            journal.prepare_spare()
    for _ in range(4):
        send(journal, account, [1800, 1800], tag)
    acknowledge(journal, account)
    # Segments that somebody reads are deleted, not recycled, when they are trimmed.
    held = [journal.body(n) for n in range(journal.first_sequence, journal.last_sequence + 1)]
    account.trimmed = account.acknowledged
    journal.trim(account.trimmed)
    assert bytes(held[-1]) == account.contents[journal.last_sequence]
    journal.close()


def check(journal: FileJournal, account: Account) -> None:
    """Judge what a journal shows after it was opened, and go on from there."""
    first, last = journal.first_sequence, journal.last_sequence
    assert account.acknowledged <= last <= account.sent
    assert last in account.group_ends
    assert first <= account.trimmed + 1 or first == last + 1 == account.acknowledged + 1
    stored = list(journal.replay(first - 1))
    assert [frame.sequence for frame in stored] == list(range(first, last + 1))
    for frame in stored:
        assert bytes(frame.body) == account.contents[frame.sequence]
    account.forget_after(last)


def run(files: SimulatedFiles, account: Account, tag: str) -> bool:
    """Run the workload; False if it was stopped."""
    try:
        live(files, account, tag)
    except Crashed:
        return False
    return True


def operations_of(workload: Callable[[SimulatedFiles], object]) -> int:
    files = SimulatedFiles()
    workload(files)
    return files.operations


TOTAL = operations_of(lambda files: live(files, Account(), "dry"))


def test_the_workload_does_what_it_should() -> None:
    files, account = SimulatedFiles(), Account()
    live(files, account, "whole")
    assert TOTAL > 60
    assert account.trimmed > 0
    live(files, account, "again")


@pytest.mark.parametrize("seed", seeds(3, range(6)))
def test_every_crash_point(seed: int) -> None:
    for stop in range(TOTAL + 1):
        rng = random.Random(f"{seed} {stop}")
        files, account = SimulatedFiles(stop_before=stop), Account()
        assert run(files, account, "first") == (stop == TOTAL)
        files = files.crash(rng)
        # The next life may end early too, with luck while it opens.
        files.stop_before = rng.choice([None, rng.randrange(12), rng.randrange(TOTAL)])
        if not run(files, account, "second"):
            files = files.crash(rng)
            files.stop_before = None
            assert run(files, account, "third")


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_directory", "open", "create"])
def test_every_failing_operation_then_a_new_journal_cut_at_what_is_known(kind: str) -> None:
    for nth in range(1, 90):
        files, account = SimulatedFiles(), Account()
        files.fail(kind, nth)
        try:
            live(files, account, "first")
        except FastiError as error:
            assert isinstance(error, StorageFailed)  # noqa: PT017
        else:
            break
        files.heal()
        known = account.acknowledged
        journal = open_journal(files, cut_after=known)
        assert journal.last_sequence <= known
        check(journal, account)
        send(journal, account, [100, 200], "after")
        acknowledge(journal, account)
        journal.close()
        for seed in range(3):
            check(open_journal(files.crash(random.Random(seed))), deepcopy(account))
    else:
        pytest.fail("the workload is longer than thought")


@pytest.mark.parametrize("nth", range(1, 40))
def test_a_process_that_dies_of_a_failed_sync_finds_no_hole(nth: int) -> None:
    """Its successor doesn't know the cut, and must not trust pages that only look durable."""
    files, account = SimulatedFiles(), Account()
    files.fail("sync", nth)
    with suppress(FastiError):
        live(files, account, "first")
    files.heal()
    journal = open_journal(files)  # The machine stayed up: the new process sees every page.
    check(journal, account)
    for seed in range(8):  # And now it goes down.
        check(open_journal(files.crash(random.Random(seed))), deepcopy(account))


class Life:
    """A journal's long and unlucky life, in random steps; every mishap is followed by a check."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = SimulatedFiles()
        self.account = Account()
        self.journal = open_journal(self.files)
        self.held: list[tuple[memoryview, bytes]] = []

    def step(self) -> None:
        names = ("send", "send", "send", "sync", "sync", "mark", "trim", "spare", "read")
        mishaps = ("restart", "crash", "crash_later", "fault", "fill")
        getattr(self, self.rng.choice(names if self.rng.random() < 0.9 else mishaps))()

    def send(self) -> None:
        sizes = [self.rng.choice((1, 40, 900, 3000, 5000)) for _ in range(self.rng.randint(1, 4))]
        before = deepcopy(self.account)
        try:
            send(self.journal, self.account, sizes, f"{self.rng.random()}")
        except StorageFull:
            # A group that was refused half way is not acknowledged and will never be finished.
            if self.journal.last_sequence == before.sent:
                self.account = before
            else:
                self.account.sent = self.journal.last_sequence
                self.account.group_ends = before.group_ends
                self.restart()

    def sync(self) -> None:
        last = self.journal.last_sequence
        acknowledge(self.journal, self.account)
        assert self.account.acknowledged == last

    def mark(self) -> None:
        self.journal.mark()

    def trim(self) -> None:
        bound = self.rng.randint(0, self.account.acknowledged)
        self.account.trimmed = max(self.account.trimmed, bound)
        self.journal.trim(bound)

    def spare(self) -> None:
        with suppress(StorageFull):
            self.journal.prepare_spare()

    def reopen(self, cut_after: int | None = None) -> None:
        try:
            self.journal = open_journal(self.files, cut_after)
        except StorageFull:
            assert cut_after is not None  # All else can be opened on a full disk.
            self.files.capacity_bytes = None
            self.journal = open_journal(self.files, cut_after)
        check(self.journal, self.account)

    def restart(self) -> None:
        self.journal.close()
        self.reopen()

    def crash(self) -> None:
        self.files = self.files.crash(self.rng)
        self.reopen()

    def crash_later(self) -> None:
        self.files.stop_before = self.files.operations + self.rng.randrange(12)
        try:
            for _ in range(20):
                self.step()
        except Crashed:
            self.files = self.files.crash(self.rng)
        self.files.stop_before = None
        self.restart()

    def fault(self) -> None:
        kind = self.rng.choice(("write", "sync", "rename", "sync_directory", "create"))
        self.files.fail(kind, self.rng.randint(1, 5))
        try:
            for _ in range(10):
                self.rng.choice((self.send, self.sync, self.mark))()
        except StorageFailed:
            self.files.heal()
            known = self.journal.synced_sequence
            self.journal.close()
            self.reopen(cut_after=known if self.rng.random() < 0.7 else None)
        self.files.heal()

    def fill(self) -> None:
        used = sum(self.files.open(name, False).size for name in self.files.list(""))
        self.files.capacity_bytes = used + self.rng.randrange(3 * SEGMENT_BYTES)
        for _ in range(15):
            steps = (self.send, self.send, self.sync, self.trim, self.spare, self.restart)
            self.rng.choice((*steps, self.crash))()
        self.files.capacity_bytes = None

    def read(self) -> None:
        """Hold a body for a while, so that its segment can't be recycled."""
        first, last = self.journal.first_sequence, self.journal.last_sequence
        if first <= last:
            sequence = self.rng.randint(first, last)
            self.held.append((self.journal.body(sequence), self.account.contents[sequence]))
        while len(self.held) > self.rng.randrange(6):
            body, content = self.held.pop(0)
            assert bytes(body) == content


@pytest.mark.parametrize("seed", range(30))
def test_a_long_and_unlucky_life(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
    life.crash()
