"""What `pip install fasti` leaves out, and how to get it.

The SDK needs little. The broker, the command line and Spark are extras: code that needs one is
imported inside `required`, which says in one line what is missing and which command installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fasti.errors import FastiError


@contextmanager
def required(extra: str, what: str) -> Iterator[None]:
    """Around imports that need an extra. Raises `FastiError` if one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "fasti"):
            raise
        message = f"{what} needs {package}, which is not installed: pip install 'fasti[{extra}]'"
        raise FastiError(message) from error
