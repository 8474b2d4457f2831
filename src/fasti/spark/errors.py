"""Fasti's errors as Spark shows them: their code stands first, so that it is found in any trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fasti.errors import FastiError


class SparkFastiError(Exception):
    """What a FastiError is in a Spark job. Its text begins with `[FASTI.<code>]`.

    It travels between Spark's processes, which not every exception does.
    """


@contextmanager
def as_spark_errors() -> Iterator[None]:
    """Raises a FastiError of the body as Spark shows it best."""
    try:
        yield
    except FastiError as error:
        details = {name: value for name, value in error.details.items() if value is not None}
        explanation = ", ".join(f"{name}={value}" for name, value in details.items())
        raise SparkFastiError(
            f"[FASTI.{error.code}] {error.message}{f' ({explanation})' if explanation else ''}"
        ) from None
