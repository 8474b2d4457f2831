"""Exit codes of the `fasti` command: one for each error code, and never changed.

0 means that all is well, 1 that the command ran and found something wrong, 2 that the command line
was not understood. The codes of errors begin at 10; a new error takes a new number. As with other
commands, 130 means Ctrl-C, 143 SIGTERM, and 141 that the reader of the output has closed it.
"""

from __future__ import annotations

import os
import sys
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
    "storage_error": 30,
    "storage_full": 31,
    "storage_failed": 32,
    "corruption": 33,
    "newer_format": 34,
    "locked": 35,
    "clock_behind": 36,
}


class ErrorsAsExits(TyperGroup):
    """The root of all commands: an error of Fasti's is told in one line, with its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except FastiError as error:
            typer.echo(f"error {error.code}: {error.message}", err=True)
            raise typer.Exit(ERROR_EXITS.get(error.code, ERROR_EXITS["error"])) from error
        except BrokenPipeError as error:
            # What is still buffered goes nowhere, or else Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from error
