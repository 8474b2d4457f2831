"""How commands end: exit codes, one for each error code and never changed, and soft ends by signals.

0 means that all is well, 1 that the command ran and found something wrong, 2 that the command line
was not understood. The codes of errors begin at 10; a new error takes a new number. As with other
commands, 130 means Ctrl-C, 143 SIGTERM, and 141 that the reader of the output has closed it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from fasti.errors import FastiError

OK = 0
FOUND_SOMETHING = 1
USAGE = 2
BROKEN_PIPE = 141
TERMINATED = 143
ERROR_EXITS: dict[str, int] = {
    "error": 10,
    "invalid_argument": 11,
    "not_found": 12,
    "already_exists": 13,
    "topic_mismatch": 14,
    "permission_denied": 15,
    "illegal_transition": 16,
    "unknown_producer": 17,
    "gone": 18,
    "fenced": 19,
    "closed": 20,
    "overloaded": 21,
    "unknown": 22,
    "unavailable": 23,
    "unauthenticated": 24,
    "timed_out": 25,
    "rows_failed": 26,
    "aborted": 27,
    "internal": 28,
    "wrong_shard": 40,
    "cross_shard": 41,
    "moved": 42,
    "call_forgotten": 43,
    "storage_error": 30,
    "storage_full": 31,
    "storage_failed": 32,
    "corruption": 33,
    "newer_format": 34,
    "locked": 35,
    "clock_behind": 36,
    "no_quorum": 37,
}


def print_error(error: FastiError) -> int:
    """Prints it in one line; its exit code."""
    typer.echo(f"error {error.code}: {error.message}", err=True)
    return ERROR_EXITS.get(error.code, ERROR_EXITS["error"])


def fail_unless(good: bool) -> None:
    """For the end of a command that has printed what is wrong."""
    if not good:
        raise typer.Exit(FOUND_SOMETHING)


@contextmanager
def terminated_softly() -> Iterator[None]:
    """SIGTERM ends a command that goes on and on as Ctrl-C does: what is unfinished is given back."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class ErrorsAsExits(TyperGroup):
    """Prints an error of Fasti's as one line, and ends with its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FastiError as error:
            raise typer.Exit(print_error(error)) from error
        except BrokenPipeError as error:
            # What is still buffered goes nowhere, or else Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from error
