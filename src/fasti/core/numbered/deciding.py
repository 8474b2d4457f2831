"""Replies on their way into the book of calls, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import Command
from fasti.core.events import NONE, Int64s
from fasti.core.numbered.book import Answer
from fasti.core.numbered.commands import CallNumber, Numbered, Recall
from fasti.core.numbered.events import CallAnswered
from fasti.core.replies import Done, Reply, TransactionReply
from fasti.core.work import Work
from fasti.errors import CallForgotten, FastiError, Overloaded, error_from_code

# What kind of reply it is: written into the journal, for ever.
REPLY, TRANSACTION, DONE, ERROR = range(4)
_NO_STATUS = np.zeros(0, dtype=np.uint8)
_NO_ROWS = (_NO_STATUS, NONE, NONE)
Columns = tuple[NDArray[np.uint8], Int64s, Int64s]


def recall(work: Work, numbered: Numbered) -> Any:
    """The reply that the command had before; None if it never came. Raises `call_forgotten`."""
    answer = work.state.calls.find(numbered.call, numbered.part, work.now_us)
    if answer is None:
        return None
    named = numbered.command.named_ids()
    receipt = answer.receipt
    if receipt is not None and not answer.has_ids and (named is None or len(named) != receipt.rows):
        raise _mismatch(numbered.call, receipt.rows)
    return _reply(answer, named)


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
    """Into the group of the command's own events."""
    form, value, (status, ids, versions) = _pack(numbered, reply)
    call = numbered.call
    work.emit(
        CallAnswered(
            *(work.now_us, call.client, call.number, numbered.part, call.since),
            *(form, value, status, ids, versions),
        )
    )


def is_kept(numbered: Numbered) -> bool:
    """Whether it is remembered though nothing happened: a repetition, which a first attempt that comes
    late must not outdo.
    """
    return bool(numbered.call.age_us) and not numbered.chosen


def remember_refusal(work: Work, numbered: Numbered, reply: Reply) -> None:
    """A command was refused: nothing happened."""
    error = reply.error
    # One that was routed by old bindings is routed anew, and comes again under its number.
    passes = isinstance(error, Overloaded) and "bindings_of" in error.details
    if is_kept(numbered) and not passes and not isinstance(error, CallForgotten):
        work.begin_group()
        remember(work, numbered, reply)
        work.end_group()


def _pack(numbered: Numbered, reply: Any) -> tuple[int, Any, Columns]:
    if reply.error is not None:
        return ERROR, _pack_error(reply.error), _NO_ROWS
    if type(reply) is Reply:
        ids = reply.ids
        if not numbered.chosen and _are_named(numbered.command, ids):
            ids = NONE
        return REPLY, _besides(reply), (reply.status, ids, reply.versions)
    if type(reply) is TransactionReply:
        replies: list[Reply] = reply.replies
        value = [int(reply.committed), [[len(each.status), _besides(each)] for each in replies]]
        if not replies:
            return TRANSACTION, value, _NO_ROWS
        columns = [[each.status, each.ids, each.versions] for each in replies]
        status, ids, versions = (np.concatenate(part) for part in zip(*columns, strict=True))
        return TRANSACTION, value, (status, ids, versions)
    assert type(reply) is Done, "a call with a number is answered by one of these"
    return DONE, _plain(reply.value), _NO_ROWS


def _are_named(command: Command, ids: Int64s) -> bool:
    """Whether the ids of a reply are those that the command has."""
    named = command.named_ids()
    return named is not None and (ids is named or bool(np.array_equal(ids, named)))


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


def _pack_error(error: FastiError) -> list[Any]:
    return [error.code, error.message, error.retry_after_us, _plain(error.details)]


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
    if answer.form == ERROR:
        code, message, retry_after_us, details = answer.value
        error = error_from_code(code, message, retry_after_us=retry_after_us, details=details)
        return Reply.refused(error)
    if answer.form == DONE:
        return Done(answer.value)
    columns = _NO_ROWS if answer.receipt is None else answer.receipt.answers()
    if answer.form == REPLY:
        status, ids, versions = columns
        if not answer.has_ids and named is not None:
            ids = named
        return _with_besides(Reply(status, ids, versions), answer.value)
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
