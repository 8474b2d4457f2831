"""What became of messages, as the caller of a mutation reads it: one `Outcome`, or `Outcomes`.

Values only; any thread may read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti import model
from fasti.client.arguments import ArrowTable, Status
from fasti.client.durations import as_datetime
from fasti.protocol import outcomes as wire

Int64s = NDArray[np.int64]

# By code: a test compares them with `model.Outcome`.
WORDS: tuple[Status, ...] = get_args(Status)
_OK = int(model.Outcome.OK)
_DUPLICATE = int(model.Outcome.DUPLICATE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message: the definite answer to a mutation.

    `status` is `ok`, `conflict`, `leased`, `done`, `cancelled`, `dead`, `not_found`, `not_owner`,
    `stale_lease`, `duplicate`, `gone` or `aborted`. `by` and `at` tell who has a leased message and
    until when; `at` also when a finished one ended. `reason` is why an answer came out as dead.
    """

    status: Status
    id: int = 0
    version: int = 0
    by: str | None = None
    at_us: int | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it happened."""
        return self.status == "ok"

    @property
    def at(self) -> datetime | None:
        """`at_us` as an aware datetime."""
        return None if self.at_us is None else as_datetime(self.at_us)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without what is not known."""
        fields = {"status": self.status, "id": self.id, "version": self.version}
        return fields | {
            name: value
            for name in ("by", "at_us", "reason")
            if (value := getattr(self, name)) is not None
        }


class Outcomes(Sequence[Outcome]):
    """What became of each row of a batch, in the order in which they were sent.

    Columns: `ids` and `versions` (int64 arrays), `codes` (uint8, the values of
    `fasti.model.Outcome`), `status` (the words, made when they are asked for). Indexing gives an
    `Outcome`:

        outcomes = producer.send_batch(payloads=[b"a", b"b"])
        if not outcomes.all_ok:
            for row in outcomes.failed:
                print(row, outcomes[row].status)
    """

    __slots__ = ("_at_us", "_by", "_reasons", "codes", "ids", "versions")

    def __init__(
        self,
        codes: NDArray[np.uint8],
        ids: Int64s,
        versions: Int64s,
        at_us: dict[int, int] | None = None,
        by: dict[int, str] | None = None,
        reasons: dict[int, str] | None = None,
    ) -> None:
        self.codes = codes
        self.ids = ids
        self.versions = versions
        self._at_us = at_us or {}
        self._by = by or {}
        self._reasons = reasons or {}

    @classmethod
    def of_reply(cls, header: dict[str, Any]) -> Outcomes:
        """From a reply or a receipt of the protocol.

        A batch that had been sent before is answered as it was then; if that is so long ago that the
        broker knows no more than that it was, for the sender that is `ok`.
        """
        reply = wire.decode(header)
        codes = reply.status
        if reply.sent_before:
            forgotten = (codes == _DUPLICATE) & (reply.ids == 0)
            codes = np.where(forgotten, np.uint8(_OK), codes)
        return cls(codes, reply.ids, reply.versions, reply.at_us, reply.by, reply.reasons)

    def only(self, row: int, ok: bool = False) -> Outcomes:
        """One row by itself; `ok` if that is what it comes down to."""
        rows = slice(row, row + 1)
        codes = np.zeros(1, dtype=np.uint8) if ok else self.codes[rows]
        reasons = {0: self._reasons[row]} if row in self._reasons else {}
        at_us = {0: self._at_us[row]} if row in self._at_us else {}
        by = {0: self._by[row]} if row in self._by else {}
        return Outcomes(codes, self.ids[rows], self.versions[rows], at_us, by, reasons)

    @classmethod
    def joined(cls, pieces: Sequence[Outcomes]) -> Outcomes:
        """Several batches of outcomes as one."""
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            none = np.zeros(0, dtype=np.int64)
            return cls(none.astype(np.uint8), none, none)
        at_us: dict[int, int] = {}
        by: dict[int, str] = {}
        begin = 0
        for piece in pieces:
            at_us |= {row + begin: value for row, value in piece._at_us.items()}
            by |= {row + begin: value for row, value in piece._by.items()}
            begin += len(piece)
        return cls(
            np.concatenate([piece.codes for piece in pieces]),
            np.concatenate([piece.ids for piece in pieces]),
            np.concatenate([piece.versions for piece in pieces]),
            at_us,
            by,
        )

    def placed(self, places: NDArray[np.intp]) -> Outcomes:
        """The same in another order: row n comes to be row `places[n]`."""
        order = np.empty(len(places), dtype=np.intp)
        order[places] = np.arange(len(places))

        def moved(values: dict[int, Any]) -> dict[int, Any]:
            return {int(places[row]): value for row, value in values.items()}

        return Outcomes(
            self.codes[order],
            self.ids[order],
            self.versions[order],
            moved(self._at_us),
            moved(self._by),
            moved(self._reasons),
        )

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> Outcome: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Outcome]: ...

    def __getitem__(self, row: int | slice) -> Outcome | Sequence[Outcome]:
        if isinstance(row, slice):
            return [self[n] for n in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        return Outcome(
            WORDS[self.codes[row]],
            int(self.ids[row]),
            int(self.versions[row]),
            self._by.get(row),
            self._at_us.get(row),
            self._reasons.get(row),
        )

    def __iter__(self) -> Iterator[Outcome]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        counts = ", ".join(f"{word}: {count}" for word, count in self.counts().items())
        return f"<Outcomes of {len(self)} rows: {counts}>"

    @property
    def status(self) -> list[Status]:
        """The words, row by row."""
        return [WORDS[code] for code in self.codes.tolist()]

    @property
    def all_ok(self) -> bool:
        """Whether every row came out as asked."""
        return not self.codes.any()

    @property
    def failed(self) -> NDArray[np.intp]:
        """The rows that are not ok."""
        return np.flatnonzero(self.codes)

    @property
    def by(self) -> dict[int, str]:
        """Of the rows that have one, who holds the message, or which target was in the way."""
        return self._by

    @property
    def at_us(self) -> dict[int, int]:
        """Of the rows that have one, until when the message is held, or when it ended."""
        return self._at_us

    def counts(self) -> dict[Status, int]:
        """How many rows have each status."""
        counts = np.bincount(self.codes, minlength=len(WORDS)).tolist()
        return {word: count for word, count in zip(WORDS, counts, strict=True) if count}

    def to_table(self) -> ArrowTable:
        """As an Arrow table: status, id, version."""
        return pa.table(
            {
                "status": pa.array(self.status, type=pa.string()),
                "id": pa.array(self.ids),
                "version": pa.array(self.versions),
            }
        )


def outcome_of_reply(header: dict[str, Any]) -> Outcome:
    """The only outcome of a reply."""
    match header:
        case {"status": [["ok", 1]], "versions": [[version, 1]], "ids": [[id, 1]]}:
            # Mostly, and without columns.
            if type(version) is type(id) is int and len(header) == 3:
                return Outcome("ok", id, version)
    return Outcomes.of_reply(header)[0]
