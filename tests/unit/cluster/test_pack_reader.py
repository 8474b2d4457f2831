"""Which packs count."""

from hypothesis import given
from hypothesis import strategies as st

from fasti.cluster.pack_reader import PackHeader, PackReader, PackVerdict

READER = PackReader(epoch=3, nonce=7, last_frame=10)


def test_the_leaders_own_packs_count() -> None:
    verdict, reader = READER.take(PackHeader(3, "a", 7, 11, 14))
    assert (verdict, reader) == (PackVerdict("counts"), PackReader(3, 7, 14))


def test_an_older_writers_pack_is_void() -> None:
    assert READER.take(PackHeader(2, "b", 8, 11, 14)) == (PackVerdict("void"), READER)


def test_a_pack_of_the_epoch_by_another_is_void() -> None:
    assert READER.take(PackHeader(3, "b", 8, 11, 14)) == (PackVerdict("void"), READER)


def test_after_a_manifest_the_epoch_alone_tells() -> None:
    reader = PackReader(epoch=3, last_frame=10)
    assert reader.take(PackHeader(3, "a", 7, 11, 11)) == (
        PackVerdict("counts"),
        PackReader(3, 7, 11),
    )


def test_a_start_voids_the_frames_of_an_unfinished_group() -> None:
    verdict, reader = READER.take(PackHeader(4, "b", 8, 9, 8, is_start=True))
    assert (verdict, reader) == (PackVerdict("counts", drop_from=9), PackReader(4, 8, 8))


def test_a_start_behind_whole_groups_voids_nothing() -> None:
    assert READER.take(PackHeader(4, "b", 8, 11, 10, is_start=True))[0] == PackVerdict("counts")


def test_a_start_of_no_higher_epoch_is_void() -> None:
    assert READER.take(PackHeader(3, "b", 8, 11, 10, is_start=True)) == (
        PackVerdict("void"),
        READER,
    )


def test_what_can_not_follow_is_a_hole() -> None:
    for header in (
        PackHeader(4, "b", 8, 11, 11),
        PackHeader(3, "a", 7, 12, 12),
        PackHeader(4, "b", 8, 12, 11, is_start=True),
    ):
        assert READER.take(header) == (PackVerdict("hole"), READER)


small = st.integers(0, 5)
headers = st.builds(PackHeader, small, st.just("a"), st.integers(1, 3), small, small, st.booleans())


@given(st.lists(headers))
def test_epochs_only_rise_and_only_a_pack_that_counts_moves_the_reader(
    packs: list[PackHeader],
) -> None:
    reader = PackReader()
    for header in packs:
        verdict, after = reader.take(header)
        assert after.epoch >= reader.epoch
        assert verdict.what == "counts" or after == reader
        reader = after
