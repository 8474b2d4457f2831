"""Replies on their way into the book of calls, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import NONE, Int64s
from fasti.core.numbered.book import Answer
from fasti.core.numbered.commands import CallNumber, Numbered, Recall
from fasti.core.numbered.events import (
    DONE,
    EVEN,
    REPLY,
    TRANSACTION,
    CallAnswered,
    RowsAnswered,
)
from fasti.core.replies import Done, Reply, TransactionReply
from fasti.core.work import Work
from fasti.errors import CallForgotten

_NO_STATUS = np.zeros(0, dtype=np.uint8)
_NO_ROWS = (_NO_STATUS, NONE, NONE)
_REPLIES = (Reply, TransactionReply, Done)
Columns = tuple[NDArray[np.uint8], Int64s, Int64s]


def recall(work: Work, numbered: Numbered) -> Any:
    """The reply that the command had before; None if it never came. Raises `call_forgotten`."""
    answer = work.state.calls.find(numbered.call, numbered.part, work.now_us)
    if answer is None:
        return None
    named = numbered.command.named_ids()
    rows = _rows_without_ids(answer)
    if rows and (named is None or len(named) != rows):
        raise _mismatch(numbered.call, rows)
    return _reply(answer, named)


def _rows_without_ids(answer: Answer) -> int:
    """How many ids are missing in an answer because the command has them."""
    if answer.form == EVEN:
        return int(answer.value[0])
    return 0 if answer.receipt is None or answer.has_ids else answer.receipt.rows


def recall_alone(work: Work, command: Recall) -> Any:
    """The same without the command; Done(None) if it never came."""
    answer = work.state.calls.find(command.call, command.part, work.now_us)
    return Done() if answer is None else _reply(answer, None)


def _mismatch(call: CallNumber, rows: int) -> CallForgotten:
    return CallForgotten(
        f"call {call.number} is remembered, but with {rows} rows: it was another one",
        details={"client": call.client, "number": call.number},
    )


def remember(work: Work, numbered: Numbered, reply: Any) -> None:
    """Into the group of the command's own events. What only looks, or was refused, needn't be remembered."""
    if type(reply) not in _REPLIES or reply.error is not None:
        return
    form, value, columns = _pack(numbered, reply)
    call = numbered.call
    place = (work.now_us, call.client, call.number, numbered.part, call.since)
    if columns is None:
        work.emit(CallAnswered(*place, form, value))
    else:
        work.emit(RowsAnswered(*place, form, value, *columns))


def is_kept(numbered: Numbered) -> bool:
    """Whether it is remembered though nothing happened: a repetition, which a first attempt that comes
    late must not outdo.
    """
    return bool(numbered.call.age_us) and not numbered.chosen


def _pack(numbered: Numbered, reply: Any) -> tuple[int, Any, Columns | None]:
    if type(reply) is Reply:
        value = _besides(reply)
        if not len(reply.status):
            return REPLY, value, None
        if numbered.chosen or numbered.command.named_ids() is None:
            return REPLY, value, (reply.status, reply.ids, reply.versions)
        if value is None and (even := _pack_even(reply)) is not None:
            return EVEN, even, None
        return REPLY, value, (reply.status, NONE, reply.versions)
    if type(reply) is TransactionReply:
        replies: list[Reply] = reply.replies
        value = [int(reply.committed), [[len(each.status), _besides(each)] for each in replies]]
        if not any(len(each.status) for each in replies):
            return TRANSACTION, value, None
        columns = [[each.status, each.ids, each.versions] for each in replies]
        status, ids, versions = (np.concatenate(part) for part in zip(*columns, strict=True))
        return TRANSACTION, value, (status, ids, versions)
    assert type(reply) is Done, "a call with a number is answered by one of these"
    return DONE, _plain(reply.value), None


def _pack_even(reply: Reply) -> list[int] | None:
    """How many rows, and the status and version of all of them, if they are alike."""
    status, versions = reply.status, reply.versions
    rows = len(status)
    first, version = int(status[0]), int(versions[0])
    if rows > 1 and ((status != first).any() or (versions != version).any()):
        return None
    return [rows, first, version]


def _besides(reply: Reply) -> Any:
    """What a reply has beside its rows, for those few that have it."""
    if reply.at_us is None and reply.by is None and not reply.sent_before:
        return None
    at_us = (
        {}
        if reply.at_us is None
        else {str(row): int(reply.at_us[row]) for row in np.flatnonzero(reply.at_us).tolist()}
    )
    by = {str(row): name for row, name in (reply.by or {}).items()}
    return [at_us, by, reply.at_us is not None, reply.by is not None, reply.sent_before]


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (np.integer, int)) and not isinstance(value, bool):
        return int(value)
    return value if value is None or isinstance(value, (bool, float, str)) else str(value)


# Back


def _reply(answer: Answer, named: Int64s | None) -> Any:
    if answer.form == DONE:
        return Done(answer.value)
    if answer.form == EVEN:
        rows, status, version = answer.value
        ids = np.zeros(rows, dtype=np.int64) if named is None else named
        return Reply(np.full(rows, status, np.uint8), ids, np.full(rows, version, np.int64))
    columns = _NO_ROWS if answer.receipt is None else answer.receipt.answers()
    if answer.form == REPLY:
        ids = columns[1] if answer.has_ids or named is None else named
        return _with_besides(Reply(columns[0], ids, columns[2]), answer.value)
    committed, described = answer.value
    replies: list[Any] = []
    begin = 0
    for rows, besides in described:
        piece = slice(begin, begin + rows)
        rows_of = (columns[0][piece], columns[1][piece], columns[2][piece])
        replies.append(_with_besides(Reply(*rows_of), besides))
        begin += rows
    return TransactionReply(bool(committed), replies)


def _with_besides(reply: Reply, besides: Any) -> Reply:
    if besides is None:
        return reply
    at_us, by, has_at_us, has_by, reply.sent_before = besides
    if has_at_us:
        reply.at_us = np.zeros(len(reply.status), dtype=np.int64)
        for row, moment in at_us.items():
            reply.at_us[int(row)] = moment
    if has_by:
        reply.by = {int(row): name for row, name in by.items()}
    return reply
