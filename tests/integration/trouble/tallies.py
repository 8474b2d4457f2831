"""Promises beside those of `verdict.py`: counters that are increased by compare-and-set, and the order of what
was sent, in a partition, in a log and in the hands of a consumer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fasti.model import SEQUENCE_BITS
from tests.integration.trouble.facts import Book, Fact
from tests.integration.trouble.verdict import Got, Ledger


def check_counters(book: Book, values: Mapping[str, int]) -> None:
    """Each answered increment counts once, each unanswered one at most once, and no read is stale.

    `values` is what the counters have in the end.
    """
    least: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    for fact in book.all("incremented", "increment_unknown"):
        most[fact["key"]] += 1
        least[fact["key"]] += fact["what"] == "incremented"
    for key in most.keys() | values.keys():
        value = values.get(key, 0)
        assert least[key] <= value <= most[key], (
            f"{key} is {value}: {least[key]} increments were answered, {most[key]} may have happened"
        )
    _check_versions(book)
    _check_reads(book)


def _check_versions(book: Book) -> None:
    """No two increments were answered with one version."""
    seen: dict[tuple[str, int], Fact] = {}
    for fact in book.all("incremented"):
        place = fact["key"], fact["version"]
        assert place not in seen, f"two increments of one version: {seen[place]} and {fact}"
        seen[place] = fact


def _check_reads(book: Book) -> None:
    """A read sees every increment that was answered before it began."""
    answered: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for fact in book.all("incremented"):
        answered[fact["key"]].append((fact["at"], fact["version"]))
    for fact in book.all("read"):
        before = [version for at, version in answered[fact["key"]] if at < fact["began"]]
        newest = max(before, default=0)
        assert fact["version"] >= newest, (
            f"a stale read: version {newest} was answered before it began: {fact}"
        )


def check_sent_in_order(ledger: Ledger) -> None:
    """What one producer sent one by one to a partition has its order there.

    Batches are told as they were given, so this holds for them as well. Names end with their number.
    """
    last: dict[tuple[str, int], tuple[int, str]] = {}
    for name in sorted(ledger.ok, key=lambda name: int(name.rpartition("-")[2])):
        message = ledger.ok[name][0]
        place = (name.rpartition("-")[0], message >> SEQUENCE_BITS)
        before, whose = last.get(place, (0, ""))
        assert message > before, f"{name} is {message}, before {whose}, which was sent first"
        last[place] = message, name


def check_got_in_order(ledger: Ledger) -> None:
    """Of an ordered group that gives nothing back: the rows of a key come in the order of their offsets."""
    last: dict[str, Got] = {}
    for got in _deliveries(ledger):
        fact = ledger.tried[got.name]
        key = fact["keys"][fact["names"].index(got.name)]
        before = last.get(key)
        assert before is None or got.id > before.id, f"{key}: {got} came after {before}"
        last[key] = got


def count_displaced(ledger: Ledger) -> int:
    """How many deliveries came behind a later one of their partition. In calm times there are none; a message
    that was on its way when its broker was lost, or that a consumer gave back unopened, may come later.
    """
    count = 0
    last: dict[int, tuple[int, int]] = {}
    for got in _deliveries(ledger):
        partition, place = got.id >> SEQUENCE_BITS, (got.due_us, got.id)
        count += place < last.get(partition, (0, 0))
        last[partition] = max(place, last.get(partition, (0, 0)))
    return count


def _deliveries(ledger: Ledger) -> list[Got]:
    deliveries = (got for each in ledger.got.values() for got in each)
    return sorted(deliveries, key=lambda got: got.at)


def check_log(ledger: Ledger, rows: Iterable[tuple[int, int, int, str]]) -> None:
    """No offset is missing or repeated, each row is where its receipt said, and none is there twice.

    `rows` is the whole log as it is read: partition, offset, id and payload.
    """
    offsets: dict[int, list[int]] = defaultdict(list)
    names: dict[str, int] = {}
    for partition, offset, message, name in rows:
        offsets[partition].append(offset)
        assert name not in names, f"{name} is in the log twice: {names[name]} and {message}"
        names[name] = message
    for partition, found in offsets.items():
        assert found == list(range(len(found))), f"partition {partition} has other offsets"
    for name, (message, _) in ledger.ok.items():
        assert names.get(name) == message, f"{name} was promised as {message}: {names.get(name)}"
    strange = names.keys() - ledger.tried.keys()
    assert not strange, f"from nowhere: {sorted(strange)[:5]}"
