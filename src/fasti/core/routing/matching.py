"""Which topics a message is routed to, by its subject.

Patterns lie in a tree of words, and what a subject was found to fit is remembered: a batch costs one
look-up per distinct subject. A matcher is made for one version of a topic's bindings and is never
changed but for what it remembers, which two threads may find out twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.commands import Produce
from fasti.core.routing.commands import Routes
from fasti.core.routing.subjects import ANY_WORD, EVERYTHING
from fasti.errors import InvalidArgument
from fasti.model import Limits

Binding = tuple[str, str]

# Of each matcher: there may be thousands.
_REMEMBERED_MAX = 4_096
# Rows of all topics that one batch may become: more would hold up everybody else.
COPIES_PER_ROW_MAX = 10


class _Words:
    """A place in the tree of patterns: what may follow, and whose pattern ends here."""

    __slots__ = ("ends", "ends_open", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Words] = {}
        self.ends: list[int] = []
        # Of patterns that go on with `>`.
        self.ends_open: list[int] = []


class Matcher:
    """The bindings of a topic under one version: which targets does a subject fit?"""

    def __init__(self, version: int, bindings: Sequence[Binding]) -> None:
        self.version = version
        self.targets = list(dict.fromkeys(target for _, target in bindings))
        self._root = _Words()
        self._always: list[int] = []
        numbers = {target: number for number, target in enumerate(self.targets)}
        for pattern, target in bindings:
            self._add(pattern, numbers[target])
        self._known: dict[str, tuple[int, ...]] = {}

    def _add(self, pattern: str, target: int) -> None:
        if pattern == EVERYTHING:
            self._always.append(target)
        *words, last = pattern.split(".")
        place = self._root
        for word in words:
            place = place.next.setdefault(word, _Words())
        if last == EVERYTHING:
            place.ends_open.append(target)
        else:
            place.next.setdefault(last, _Words()).ends.append(target)

    def match(self, subject: str | None) -> tuple[int, ...]:
        """The numbers of the targets that this subject goes to, in order."""
        if subject is None:
            return tuple(self._always)
        found = self._known.get(subject)
        if found is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            found = self._known[subject] = self._search(subject)
        return found

    def _search(self, subject: str) -> tuple[int, ...]:
        found: set[int] = set()
        places = [self._root]
        # Every place of the tree is met once at most, whatever the patterns are.
        for word in subject.split("."):
            following: list[_Words] = []
            for place in places:
                found.update(place.ends_open)
                for sign in (word, ANY_WORD):
                    if (after := place.next.get(sign)) is not None:
                        following.append(after)
            places = following
            if not places:
                break
        for place in places:
            found.update(place.ends)
        return tuple(sorted(found))

    def routes(self, subjects: pa.Array | None, count: int) -> Routes:
        """Where each row of a batch goes."""
        if subjects is None:
            everywhere = np.arange(count, dtype=np.int64)
            rows = [(number, everywhere) for number in self.match(None)]
        else:
            rows = self._rows(subjects)
        return Routes(self.version, [(self.targets[number], mine) for number, mine in rows])

    def _rows(self, subjects: pa.Array) -> list[tuple[int, NDArray[np.int64]]]:
        encoded = subjects.dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        fits = [self.match(subject) for subject in encoded.dictionary.to_pylist()]
        fits.append(self.match(None))
        wanted: dict[int, list[int]] = {}
        for code, targets in enumerate(fits):
            for target in targets:
                wanted.setdefault(target, []).append(code)
        found = []
        for target, fitting in sorted(wanted.items()):
            mask = np.zeros(len(fits), dtype=np.bool_)
            mask[fitting] = True
            rows = np.flatnonzero(mask[codes])
            if len(rows):
                found.append((target, rows))
        return found


def routes_of(matcher: Matcher, command: Produce, limits: Limits) -> Routes:
    """Where the rows of a produce go. Raises `invalid_argument` if they would become too many."""
    batch, count = command.rows.batch, len(command.rows)
    subjects = batch.column("subject") if "subject" in batch.schema.names else None
    routes = matcher.routes(subjects, count)
    copies = sum(len(rows) for _, rows in routes.targets)
    limit = COPIES_PER_ROW_MAX * limits.batch_rows_max
    if copies > limit:
        raise InvalidArgument(
            f"the bindings would make {copies} copies of this batch, the limit is {limit}: send "
            "fewer rows at a time",
            field="batch_rows_max",
            limit=limit,
        )
    return routes
