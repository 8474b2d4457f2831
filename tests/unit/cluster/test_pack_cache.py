"""Packs that a broker keeps on its disk."""

from __future__ import annotations

from pathlib import Path

from fasti.cluster.pack_cache import PackCache


def message(place: int, size: int = 100) -> bytes:
    return bytes([place % 251]) * size


def filled(directory: Path, places: range, bytes_max: int = 1 << 20) -> PackCache:
    cache = PackCache(directory, bytes_max)
    for place in places:
        cache.put(place, message(place))
    return cache


def kept(cache: PackCache, places: range) -> list[int]:
    return [place for place in places if cache.get(place) == message(place)]


def test_what_was_put_is_there_also_for_the_next_process(tmp_path: Path) -> None:
    places = range(5, 50)
    cache = filled(tmp_path, places)
    assert kept(cache, range(60)) == list(places)
    cache.close()
    again = PackCache(tmp_path, 1 << 20)
    assert kept(again, range(60)) == list(places)
    assert again.bytes == cache.bytes
    again.put(50, message(50))
    assert kept(again, range(60)) == list(range(5, 51))


def test_the_oldest_go_when_it_is_full(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(1, 1001), 10_000)
    assert cache.bytes <= 10_000
    last = kept(cache, range(1, 1001))
    assert last == list(range(last[0], 1001))
    assert len(last) > 50
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == cache.bytes
    assert PackCache(tmp_path / "none", 0).get(1) is None
    nothing = filled(tmp_path / "none", range(5), 0)
    assert nothing.bytes == 0


def test_what_is_trimmed_goes_two_trims_later(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(1, 101), 8_000)
    oldest = kept(cache, range(101))[0]
    for trimmed in (60, 61):
        cache.let_go(trimmed)
        assert kept(cache, range(101))[0] == oldest
    cache.let_go(62)
    rest = kept(cache, range(101))
    # By whole files, and never more than what was trimmed.
    assert oldest < rest[0] <= 61
    assert rest[-1] == 100


def test_a_place_that_is_written_again_has_what_was_written_last(tmp_path: Path) -> None:
    """As when a stream is made anew: places begin with 1 again."""
    cache = filled(tmp_path, range(1, 20))
    cache.put(40, message(40))
    cache.put(3, b"of another journal")
    assert cache.get(3) == b"of another journal"
    cache.close()
    again = PackCache(tmp_path, 1 << 20)
    assert again.get(3) == b"of another journal"
    assert again.get(4) == message(4)


def test_a_file_that_ends_in_the_middle_is_used_up_to_there(tmp_path: Path) -> None:
    filled(tmp_path, range(1, 11)).close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / "9-x.packs").write_bytes(b"rubbish")
    assert kept(PackCache(tmp_path, 1 << 20), range(20)) == list(range(1, 10))
