"""The `fasti` command as a process: `fasti`, or `python -m fasti`."""

import atexit
import os
import sys
import threading
from contextlib import suppress

from fasti.errors import FastiError
from fasti.extras import required


def main() -> None:
    """Runs a command and ends the process with its exit code."""
    try:
        with required("cli", "the command line"):
            from fasti.cli import connection
            from fasti.cli.main import app
    except FastiError as error:
        sys.exit(f"error {error.code}: {error.message}")
    connection.own_process = True
    code: object = 0
    try:
        app(prog_name="fasti")
    except SystemExit as asked:
        code = asked.code
    _end(code if isinstance(code, int) else int(code is not None))


def _end(code: int) -> None:
    """Ends without taking the process to pieces.

    gRPC's threads live in it until the very end. If one of them is still at work when Python and C++
    take themselves apart, the process dies by SIGABRT after it has done all that it should: rarely,
    but scripts ask for exit codes.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
