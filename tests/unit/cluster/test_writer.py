"""One broker's part in a shard: every answer, lost or not, leads where reading says."""

import pytest

from fasti.cluster.writer import (
    MISSING,
    TRIMMED,
    AppendPack,
    ApplyPack,
    CaughtUp,
    ClaimPointer,
    InstallManifest,
    LoseShard,
    PackHeader,
    PackReader,
    PointerHeader,
    ReadPack,
    ReadPointer,
    ReportHole,
    Role,
    Serve,
    Settle,
    StandDown,
    Writer,
)

START = PackHeader(1, "a", 7, 1, 0, is_start=True)
OLD_START = PackHeader(1, "b", 9, 1, 0, is_start=True)


def leader() -> Writer:
    """Leads an empty shard since sequence 1, under epoch 1."""
    writer = Writer("a", 7)
    assert writer.take_over() == ReadPointer()
    assert writer.pointer_read(None) == ReadPack(1)
    assert writer.read(MISSING) == AppendPack(START, 0)
    assert writer.appended(1) == ReadPointer()
    assert writer.pointer_read(None) == ClaimPointer(0, PointerHeader(0, 1, "a", "", 0))
    assert writer.pointer_claimed(1) == Serve(1)
    assert writer.role is Role.LEADER
    return writer


def candidate() -> Writer:
    """Has `LeaderStarted` in flight for sequence 1, and was refused."""
    writer = Writer("a", 7)
    writer.take_over()
    writer.pointer_read(None)
    writer.read(MISSING)
    assert writer.refused() == ReadPack(1)
    return writer


def pack(epoch: int, first: int, last: int, *, broker: str = "a", nonce: int = 7) -> PackHeader:
    return PackHeader(epoch, broker, nonce, first, last)


def test_a_leader_appends_one_pack_after_another() -> None:
    writer = leader()
    assert writer.append(1, 3) == AppendPack(pack(1, 1, 3), 1)
    assert writer.appended(2) == Settle(2)
    assert writer.append(4, 4) == AppendPack(pack(1, 4, 4), 2)


def test_a_second_pack_in_flight_is_refused_and_changes_nothing() -> None:
    writer = leader()
    writer.append(1, 1)
    with pytest.raises(RuntimeError, match="one pack at a time"):
        writer.append(2, 2)
    assert writer.appended(2) == Settle(2)


@pytest.mark.parametrize("answer", ["refused", "unanswered"])
def test_no_answer_is_believed_before_its_place_is_read(answer: str) -> None:
    writer = leader()
    writer.append(1, 1)
    assert getattr(writer, answer)() == ReadPack(2)
    # Nothing there: the same append with the same expectation.
    assert writer.read(MISSING) == AppendPack(pack(1, 1, 1), 1)
    assert getattr(writer, answer)() == ReadPack(2)
    assert writer.read(pack(1, 1, 1)) == Settle(2)


def test_an_answer_for_another_place_is_not_this_packs() -> None:
    writer = leader()
    writer.append(1, 1)
    assert writer.appended(9) == ReadPack(2)


def test_a_higher_epoch_in_the_place_fences_a_leader() -> None:
    writer = leader()
    writer.append(1, 1)
    writer.refused()
    assert writer.read(PackHeader(2, "b", 9, 1, 0, is_start=True)) == LoseShard(2, "moved")
    assert writer.role is Role.FENCED
    with pytest.raises(RuntimeError):
        writer.append(1, 1)


def test_after_a_fence_all_begins_from_nothing() -> None:
    writer = leader()
    assert writer.fence(2) == LoseShard(2, None)
    assert writer.follow() == ReadPointer()
    assert (writer.last, writer.epoch, writer.role) == (0, 0, Role.STANDBY)


def test_a_fence_from_outside_reads_for_the_pack_in_flight_first() -> None:
    writer = leader()
    writer.append(1, 1)
    assert writer.fence(2) == ReadPack(2)
    assert writer.read(pack(1, 1, 1)) == Settle(2)


@pytest.mark.parametrize(
    "void",
    [
        pack(0, 1, 1, broker="b", nonce=9),
        pack(1, 1, 1, broker="b", nonce=9),
        OLD_START,
    ],
)
def test_a_leader_steps_over_a_void_pack(void: PackHeader) -> None:
    writer = leader()
    writer.append(1, 1)
    writer.refused()
    assert writer.read(void) == AppendPack(pack(1, 1, 1), 2)
    assert writer.appended(3) == Settle(3)


def test_a_trimmed_place_leaves_a_leaders_pack_unknown() -> None:
    writer = leader()
    writer.append(1, 1)
    writer.unanswered()
    assert writer.read(TRIMMED) == LoseShard(0, "unknown")


def test_a_leader_that_asks_whether_it_leads() -> None:
    writer = leader()
    assert writer.resolve() == ReadPack(2)
    assert writer.read(MISSING) == Serve(1)
    writer.resolve()
    assert writer.read(PackHeader(2, "b", 9, 1, 0, is_start=True)) == LoseShard(2, None)


def test_a_candidate_finds_its_own_start() -> None:
    assert candidate().read(START) == ReadPointer()


def test_a_candidate_repeats_a_start_that_is_not_there() -> None:
    writer = candidate()
    assert writer.read(MISSING) == AppendPack(START, 0)


def test_a_candidate_applies_the_old_leaders_last_packs_and_starts_behind_them() -> None:
    writer = Writer("a", 7)
    writer.take_over()
    writer.pointer_read(None)
    assert writer.read(OLD_START) == ApplyPack(OLD_START, None)
    assert writer.applied(1) == ReadPack(2)
    assert writer.read(MISSING) == AppendPack(PackHeader(2, "a", 7, 1, 0, is_start=True), 1)
    writer.refused()
    late = pack(1, 1, 2, broker="b", nonce=9)
    assert writer.read(late) == ApplyPack(late, None)
    assert writer.applied(3) == ReadPack(3)
    assert writer.read(MISSING) == AppendPack(PackHeader(2, "a", 7, 3, 2, is_start=True), 2)


def test_a_candidate_that_meets_anothers_start_in_its_place_stands_down() -> None:
    writer = candidate()
    assert writer.read(OLD_START) == ApplyPack(OLD_START, None)
    assert writer.applied(1) == StandDown(1)
    assert writer.role is Role.STANDBY
    assert writer.take_over() == ReadPack(2)
    assert writer.read(MISSING) == AppendPack(PackHeader(2, "a", 7, 1, 0, is_start=True), 1)


def test_a_candidate_is_fenced_by_a_newer_pointer() -> None:
    writer = candidate()
    writer.read(START)
    assert writer.pointer_read(PointerHeader(3, 2, "b", "", 0)) == LoseShard(2, None)


def test_a_claim_without_an_answer_is_read_for() -> None:
    writer = candidate()
    writer.read(START)
    writer.pointer_read(None)
    assert writer.unanswered() == ReadPointer()
    assert writer.pointer_read(PointerHeader(1, 1, "a", "", 0)) == Serve(1)


def test_a_manifest_that_came_meanwhile_is_installed_before_the_claim() -> None:
    writer = candidate()
    writer.read(START)
    writer.pointer_read(None)
    assert writer.refused() == ReadPointer()
    moved = PointerHeader(5, 0, "b", "0-1", 0)
    assert writer.pointer_read(moved) == InstallManifest(moved)
    assert writer.installed(PackReader(), 1) == ClaimPointer(5, PointerHeader(0, 1, "a", "0-1", 0))


def test_a_manifest_whose_blocks_are_gone_is_asked_for_again() -> None:
    writer = Writer("a", 7)
    writer.follow()
    pointer = PointerHeader(5, 3, "b", "3-1", 40)
    assert writer.pointer_read(pointer) == InstallManifest(pointer)
    assert writer.installed(None, 0) == ReadPointer()
    writer.pointer_read(pointer)
    assert writer.installed(PackReader(3, 9, 17), 18) == ReadPack(41)
    assert writer.read(MISSING) == CaughtUp(40)
    assert (writer.epoch, writer.next_frame) == (3, 18)


def test_a_standby_behind_the_trimmed_part_installs_the_manifest() -> None:
    writer = Writer("a", 7)
    writer.follow()
    writer.pointer_read(None)
    assert writer.read(TRIMMED) == ReadPointer()
    pointer = PointerHeader(5, 3, "b", "3-1", 40)
    assert writer.pointer_read(pointer) == InstallManifest(pointer)


def test_a_hole_is_reported_and_not_passed() -> None:
    writer = Writer("a", 7)
    writer.follow()
    writer.pointer_read(None)
    assert writer.read(pack(3, 1, 1)) == ReportHole(1)
    assert writer.follow() == ReadPack(1)


def test_reads_without_an_answer_are_repeated() -> None:
    writer = Writer("a", 7)
    assert writer.follow() == writer.unanswered() == ReadPointer()
    assert writer.pointer_read(None) == writer.unanswered() == ReadPack(1)


def test_a_leader_that_yielded_follows_with_its_engine() -> None:
    writer = leader()
    writer.append(1, 1)
    with pytest.raises(RuntimeError, match="one pack at a time"):
        writer.yield_shard()
    writer.appended(2)
    with pytest.raises(RuntimeError, match="yields before it follows"):
        writer.follow()
    end = writer.yield_shard()
    assert isinstance(end, AppendPack)
    assert end.header.is_end
    assert (end.header.first_frame, end.header.last_frame) == (2, 1)
    assert writer.appended(3) == Settle(3)
    assert writer.role is Role.STANDBY
    with pytest.raises(RuntimeError, match="one pack at a time"):
        writer.append(2, 2)
    assert writer.follow() == ReadPack(4)


def test_what_a_leader_writes_behind_its_end_is_void() -> None:
    reader = PackReader(3, 7, 5)
    verdict, after = reader.take(PackHeader(3, "a", 7, 6, 5, is_end=True))
    assert verdict.what == "counts"
    assert after.take(PackHeader(3, "a", 7, 6, 6))[0].what == "void"
    assert after.take(PackHeader(4, "b", 8, 6, 5, is_start=True))[0].what == "counts"


def test_a_result_that_nobody_asked_for_changes_nothing() -> None:
    writer = leader()
    for call in (lambda: writer.appended(2), writer.refused, lambda: writer.read(MISSING)):
        with pytest.raises(RuntimeError, match="no result"):
            call()
    assert writer.append(1, 1) == AppendPack(pack(1, 1, 1), 1)


@pytest.mark.parametrize(("first", "last"), [(3, 3), (0, 0), (-1, 1), (1, -1)])
def test_frames_must_follow(first: int, last: int) -> None:
    writer = leader()
    writer.append(1, 1)
    writer.appended(2)
    with pytest.raises(ValueError, match="don't follow"):
        writer.append(first, last)


def test_a_leader_may_append_nothing_and_parts_of_a_frame() -> None:
    writer = leader()
    for first, last in ((1, 0), (1, 1), (1, 1), (2, 1)):
        writer.append(first, last)
        assert isinstance(writer.appended(writer.last + 1), Settle)
