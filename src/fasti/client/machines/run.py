"""A run: messages that arrived together under one lease token, in columns.

Rows below `next` are in the hands of user code, those from it on are held here. `next` moves in steps
of the machine; `finished` may be set by any thread, and a row is finished once. Columns become Python
values only when they are read.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.protocol.schemas import LEASED

if TYPE_CHECKING:
    from fasti.client.durations import Duration
    from fasti.client.machines.returns import Gathering, Return
    from fasti.client.outcomes import Outcomes

Int64s = NDArray[np.int64]

_FAR_US = 1 << 62


@cache
def prepare() -> None:
    """Has Arrow do now what it does at the first conversion: it imports pandas, if there is one, and
    the first message would wait for that. For a user's thread.
    """
    pa.array([0], pa.int64()).to_numpy(zero_copy_only=False)


class ReplyQueue(Protocol):
    """Takes answers to requests, which go beside the session."""

    def send(self, reply: Any) -> None: ...


class FailureCount(Protocol):
    """Counts what came out otherwise than asked."""

    def counted(self, rows: int = 1) -> None: ...


class RunSession(Protocol):
    """The session that a run came by, as far as messages in the hands of user code need it."""

    topic: str
    group: str
    # Where actions find what is leased here.
    header: dict[str, Any]
    reason_bytes_max: int
    payload_bytes_max: int
    gathering: Gathering

    @property
    def failures(self) -> FailureCount: ...
    @property
    def attempts_max(self) -> int: ...
    @property
    def replies(self) -> ReplyQueue: ...
    def acked(self, run: Run) -> None: ...
    def give_back(
        self, returned: Return, wait: bool, timeout: Duration | None
    ) -> Outcomes | None: ...
    def finished_elsewhere(self, run: Run, row: int) -> None: ...
    def await_tokens(self, timeout: float) -> bool: ...
    def limit_s(self, timeout: Duration | None) -> float: ...


class Run:
    """Rows of one `leased` batch, in the order in which they are handed over.

    That is by due time, but for a batch of a priority topic (`ranked`), whose order is the broker's
    and which follows on those before it: no row has its turn before `after_us`.

    A message that came alone needs no batch: then `content` is its payload, and `row` has the rest.
    """

    __slots__ = (
        "_batch",
        "_data",
        "_dues",
        "_ids",
        "_lists",
        "_offsets",
        "_row",
        "_turns",
        "acks",
        "came_us",
        "due_us",
        "ends",
        "finished",
        "gone",
        "ids",
        "leased_us",
        "left",
        "listed",
        "next",
        "ranked",
        "rows",
        "serial",
        "session",
        "started",
        "token",
        "tokens",
        "topic",
        "turn_us",
        "until_us",
    )

    def __init__(
        self,
        session: RunSession,
        token: int,
        content: pa.RecordBatch | bytes,
        ranked: bool = False,
        after_us: int = 0,
        row: dict[str, Any] | None = None,
    ) -> None:
        self._lists: dict[str, list[Any]] = {}
        self._data: bytes | None = None
        self._offsets: list[int] = []
        if type(content) is bytes:
            assert row is not None
            due_us = self._take_row(row, content)
        else:
            due_us = self._take_batch(content, ranked)
        self.session = session
        self.topic = session.topic
        self.token = token
        # After a reconnection: the new token of each row that has one.
        self.tokens: dict[int, int] | None = None
        self.due_us: Int64s = due_us
        # From when on each row may be handed over, in this order.
        self.ranked = ranked
        self.turn_us = np.maximum.accumulate(np.maximum(due_us, after_us)) if ranked else due_us
        # How many came before it; set when it is held.
        self.serial = 0
        self.rows = self.left = len(due_us)
        self.next = 0
        # On the broker's clock: until then the lease lasts for certain, as far as is known here.
        self.until_us = _FAR_US
        # When it was leased and when it came, on the same clock.
        self.leased_us = self.came_us = _FAR_US
        self.started = array("q", bytes(8 * self.rows))
        self.finished = bytearray(self.rows)
        # Rows that the books of the consumer don't count any more.
        self.gone = bytearray(self.rows)
        # Acks that are gathered, and whether the session knows that there are some.
        self.acks: list[int] = []
        self.listed = False
        self._ids: list[int] | None = None
        self._dues: list[int] | None = None
        self._turns: list[int] | None = None

    def _take_batch(self, batch: pa.RecordBatch, ranked: bool) -> Int64s:
        """The due times of its rows, in the order of the run."""
        due_us: Int64s = batch.column("due_us").to_numpy(zero_copy_only=False)
        if not ranked and len(due_us) > 1 and (due_us[1:] < due_us[:-1]).any():
            order = np.argsort(due_us, kind="stable")
            batch = batch.take(pa.array(order))
            due_us = due_us[order]
        self._batch: pa.RecordBatch | None = batch
        self._row: dict[str, Any] | None = None
        self.ids: Int64s = batch.column("id").to_numpy(zero_copy_only=False)
        # By when each must be begun, 0: no matter; None, as nearly always, if it is none's.
        self.ends = _ends(batch)
        return due_us

    def _take_row(self, row: dict[str, Any], payload: bytes) -> Int64s:
        """The due time of the one message."""
        self._batch, self._row = None, row
        self._data, self._offsets = payload, [0, len(payload)]
        self.ids = np.array([row["id"]], dtype=np.int64)
        ends = row.get("expires_us")
        self.ends = [ends] if ends else None
        return np.array([row["due_us"]], dtype=np.int64)

    @property
    def batch(self) -> pa.RecordBatch:
        """Its rows in Arrow's columns."""
        if self._batch is None:
            row = {**(self._row or {}), "payload": self._data}
            self._batch = pa.RecordBatch.from_pylist([row], schema=LEASED)
        return self._batch

    @property
    def row_bytes(self) -> int:
        """How large its rows are, about."""
        if self._batch is None:
            return self._offsets[1]
        return int(self._batch.nbytes // self._batch.num_rows)

    def id_list(self) -> list[int]:
        """The ids as Python numbers."""
        if self._ids is None:
            self._ids = self.ids.tolist()
        return self._ids

    def due_list(self) -> list[int]:
        """The due times as Python numbers."""
        if self._dues is None:
            self._dues = self.due_us.tolist()
        return self._dues

    def turn_list(self) -> list[int]:
        """The turns as Python numbers."""
        if self._turns is None:
            self._turns = self.turn_us.tolist()
        return self._turns

    def last_due_us(self) -> int:
        """The latest due time of those that were due when it came; 0 if none was."""
        return int(self.due_us[self.due_us <= self.came_us].max(initial=0))

    def begun_us(self) -> int:
        """Since when the leases of what is held here are counted, at the earliest."""
        held = self.due_us[self.next : self.rows]
        return max(self.leased_us, int(held.min())) if len(held) else self.leased_us

    def value(self, name: str, row: int) -> Any:
        """A value of a column."""
        if self._row is not None:
            return self._row.get(name)
        values = self._lists.get(name)
        if values is None:
            values = self._lists[name] = self.batch.column(name).to_pylist()
        return values[row]

    def key(self, row: int) -> str | None:
        """The application's name for a message, if it has one."""
        if self._row is None and "key" not in self.batch.schema.names:
            return None
        key: str | None = self.value("key", row)
        return key

    def payload(self, row: int) -> bytes:
        """One payload."""
        if self._data is None:
            column = self.batch.column("payload")
            offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
            first = column.offset
            self._offsets = offsets[first : first + len(column) + 1].tolist()
            data = column.buffers()[2]
            self._data = b"" if data is None else data.to_pybytes()
        return self._data[self._offsets[row] : self._offsets[row + 1]]

    def tokens_of(self, rows: NDArray[np.intp]) -> Int64s:
        """The token under which each row is leased, as far as it is known here."""
        tokens = np.full(len(rows), self.token, dtype=np.int64)
        if self.tokens:
            for place, row in enumerate(rows.tolist()):
                tokens[place] = self.tokens.get(row, self.token)
        return tokens

    def token_of(self, row: int) -> int:
        """The token of one row."""
        return self.token if not self.tokens else self.tokens.get(row, self.token)

    def started_of(self, rows: NDArray[np.intp]) -> Int64s:
        """When user code got each row; 0 for those that it did not."""
        return np.frombuffer(self.started, dtype=np.int64)[rows]

    def unfinished(self, begin: int, end: int) -> NDArray[np.intp]:
        """The rows in [begin, end) that are not finished."""
        flags = np.frombuffer(self.finished, dtype=np.uint8)[begin:end]
        return np.flatnonzero(flags == 0) + begin

    def any_finished(self, rows: NDArray[np.intp]) -> bool:
        """Whether one of the rows is finished."""
        return bool(np.frombuffer(self.finished, dtype=np.uint8)[rows].any())

    def finish(self, rows: NDArray[np.intp]) -> None:
        """Marks rows finished."""
        np.frombuffer(self.finished, dtype=np.uint8)[rows] = 1


def _ends(batch: pa.RecordBatch) -> list[int] | None:
    if "expires_us" not in batch.schema.names:
        return None
    column = batch.column("expires_us")
    if column.null_count == len(column):
        return None
    ends: list[int] = column.fill_null(0).to_pylist()
    return ends
