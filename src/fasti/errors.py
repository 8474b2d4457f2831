"""The one error tree of Fasti.

Every error that a caller may meet is a class below `FastiError`, and has

* ``code``: a stable string.  The same code is seen in the SDK, over Flight, in HTTP problem
  details, in CLI exit codes and in the documentation; a code is never renamed or reused;
* ``retryable``: whether the same call, unchanged, may succeed later;
* ``retry_after_us``: how long to wait before trying again, when the broker can tell;
* ``details``: what a program may want to know (a field, a limit, a file), as plain values that
  survive JSON and pickling.

::

    FastiError                      error
    ├── InvalidArgument             invalid_argument     field and limit are named; nothing changed
    ├── NotFound                    not_found
    ├── AlreadyExists               already_exists
    ├── TopicMismatch               topic_mismatch       exists with other settings; they are named
    ├── PermissionDenied            permission_denied
    ├── Unauthenticated             unauthenticated      no credentials, or wrong ones
    ├── IllegalTransition           illegal_transition   not an edge of the life cycle
    ├── UnknownProducer             unknown_producer     its receipts are forgotten
    ├── Gone                        gone                 position or snapshot is no longer there
    ├── Fenced                      fenced               a newer holder has taken this place
    ├── Closed                      closed
    ├── RowsFailed                  rows_failed          gathered rows came out otherwise than asked
    ├── TransactionAborted          aborted              nothing of it happened; outcomes say why
    ├── WrongShard                  wrong_shard          a row or call belongs to another shard; nothing changed
    ├── CrossShard                  cross_shard          what must be atomic lies on several shards
    ├── InternalError               internal             a fault of the broker; not to be repeated
    ├── Overloaded                  overloaded           retryable
    ├── Unavailable                 unavailable          retryable: no broker answers
    ├── Moved                       moved                retryable: another process has the shard; nothing changed
    ├── TimedOut                    timed_out            retryable: no answer in the time allowed
    ├── OutcomeUnknown              unknown              retryable: it may or may not have happened
    │   └── CallForgotten           call_forgotten       what became of it is not remembered any more
    └── StorageError                storage_error
        ├── StorageFull             storage_full         retryable; nothing was written
        ├── StorageFailed           storage_failed       what was under way is unknown
        │   └── NoQuorum            no_quorum            retryable: too few of the cluster's NATS servers answer
        ├── Corruption              corruption           file and offset are named
        ├── NewerFormat             newer_format         of a format that this version can't read; not touched
        ├── DataDirLocked           locked               another process has the directory open
        └── ClockBehind             clock_behind         the disk is far ahead of the wall clock

The module holds values only and may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

__all__ = [
    "AlreadyExists",
    "CallForgotten",
    "ClockBehind",
    "Closed",
    "Corruption",
    "CrossShard",
    "DataDirLocked",
    "FastiError",
    "Fenced",
    "Gone",
    "IllegalTransition",
    "InternalError",
    "InvalidArgument",
    "Moved",
    "NewerFormat",
    "NoQuorum",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "RowsFailed",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "TimedOut",
    "TopicMismatch",
    "TransactionAborted",
    "Unauthenticated",
    "Unavailable",
    "UnknownProducer",
    "WrongShard",
    "error_codes",
    "error_from_code",
]


class FastiError(Exception):
    """The root: catch it to catch everything that Fasti raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_us: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_us = retry_after_us
        self.details: dict[str, Any] = dict(details or {})

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark's workers, the HTTP door), with whatever arguments the
        # subclass takes, so they are rebuilt from their plain values.
        return _rebuild, (type(self), self.message, self.retry_after_us, self.details)


def _rebuild(
    kind: type[FastiError], message: str, retry_after_us: int | None, details: Mapping[str, Any]
) -> FastiError:
    error = kind.__new__(kind)
    FastiError.__init__(error, message, retry_after_us=retry_after_us, details=details)
    return error


class InvalidArgument(FastiError):
    """The input is wrong: the message names the field and, where there is one, the limit."""

    code = "invalid_argument"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: Any = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"field": field, "limit": limit, **(details or {})})

    @property
    def field(self) -> str | None:
        """The argument that was refused."""
        value = self.details.get("field")
        return None if value is None else str(value)

    @property
    def limit(self) -> Any:
        """The bound that it broke, if it was a bound."""
        return self.details.get("limit")


class NotFound(FastiError):
    """There is no such topic, message, snapshot or file."""

    code = "not_found"


class AlreadyExists(FastiError):
    """The name is taken."""

    code = "already_exists"


class TopicMismatch(FastiError):
    """The topic exists with other settings than the ones asked for."""

    code = "topic_mismatch"

    def __init__(
        self,
        message: str,
        *,
        differing: Iterable[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"differing": sorted(differing), **(details or {})})

    @property
    def differing(self) -> list[str]:
        """The names of the settings that differ, sorted."""
        return list(self.details.get("differing", ()))


class PermissionDenied(FastiError):
    """The caller, or the process on its file system, may not do this."""

    code = "permission_denied"


class Unauthenticated(FastiError):
    """The broker asks for credentials, and there were none or wrong ones."""

    code = "unauthenticated"


class IllegalTransition(FastiError):
    """The life cycle has no such edge; nothing was changed."""

    code = "illegal_transition"


class UnknownProducer(FastiError):
    """The producer's receipts were forgotten, so a retry can't be told from a new send."""

    code = "unknown_producer"


class Gone(FastiError):
    """The position or snapshot was there once and no longer is."""

    code = "gone"


class Fenced(FastiError):
    """A newer holder has taken this place; this one must stop."""

    code = "fenced"


class Closed(FastiError):
    """The object was closed before the call."""

    code = "closed"


class RowsFailed(FastiError):
    """Gathered sends or acks came out otherwise than asked, and their outcome was not read.

    Raised by `flush` and `close`, after everything was sent; `details` has up to the first hundred.
    """

    code = "rows_failed"

    def __init__(
        self,
        message: str,
        *,
        failures: Iterable[Mapping[str, Any]] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"failures": list(failures), **(details or {})})

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        """What failed: operation, topic, id or key, status."""
        return list(self.details.get("failures", ()))


class TransactionAborted(FastiError):
    """A row of the transaction was not ok, so nothing of it happened.

    `details` has up to the first hundred rows that were not ok.
    """

    code = "aborted"

    def __init__(
        self,
        message: str,
        *,
        failures: Iterable[Mapping[str, Any]] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"failures": list(failures), **(details or {})})

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        """What stood in the way: command, row, operation, topic, id, status."""
        return list(self.details.get("failures", ()))


class WrongShard(FastiError):
    """The call reached a shard that doesn't have what it names; nothing was changed.

    Clients send each row to the shard that its partition lies on. `details` has `topic` and, where one
    shard would be right, `shard`.
    """

    code = "wrong_shard"


class CrossShard(FastiError):
    """What was asked for has to happen whole or not at all, and lies on several shards.

    Nothing was changed. Topics with the same `home`, `partitions` and `width` have equal keys on equal
    shards.
    """

    code = "cross_shard"


class InternalError(FastiError):
    """The broker failed on this very request, by a fault of its own: it is not to be repeated.

    A command that the engine failed on has changed nothing, and the message says so; where only the
    answer could not be told, it may have happened. The broker's log has the rest.
    """

    code = "internal"


class Overloaded(FastiError):
    """A bounded queue or budget is full; nothing was changed."""

    code = "overloaded"
    retryable = True


class Unavailable(FastiError):
    """No broker answers at the address, or the connection was lost."""

    code = "unavailable"
    retryable = True


class Moved(FastiError):
    """Another process has the shard: nothing was done here.

    `details` has `shard`, its number, and `address`, where it is now; None if that is not known.
    """

    code = "moved"
    retryable = True


class TimedOut(FastiError):
    """No answer came in the time that the caller allowed; what was asked may still happen."""

    code = "timed_out"
    retryable = True


class OutcomeUnknown(FastiError):
    """The call may or may not have happened; an idempotent retry finds out."""

    code = "unknown"
    retryable = True


class CallForgotten(OutcomeUnknown):
    """The call was made again, and what became of it the first time is not remembered any more.

    Nothing was done this time. To make it again is no use: look at what it was to change.
    """

    code = "call_forgotten"
    retryable = False


class StorageError(FastiError):
    """The root of what a disk, or its stand-in, can answer."""

    code = "storage_error"


class StorageFull(StorageError):
    """There is no room; nothing was written and the storage stays usable."""

    code = "storage_full"
    retryable = True


class StorageFailed(StorageError):
    """An append, read or sync failed; the outcome of what was under way is unknown."""

    code = "storage_failed"


class NoQuorum(StorageFailed):
    """Too few of the servers that keep a cluster's shard answer.

    Nothing was done. What was under way when they stopped answering waits, and is answered when enough of
    them are back; then the shard goes on by itself.
    """

    code = "no_quorum"
    retryable = True


class Corruption(StorageError):
    """Stored bytes are not what was acknowledged."""

    code = "corruption"

    def __init__(
        self,
        message: str,
        *,
        file: str,
        offset: int,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"file": file, "offset": offset, **(details or {})})

    @property
    def file(self) -> str:
        """The damaged file, relative to the data directory."""
        return str(self.details["file"])

    @property
    def offset(self) -> int:
        """Where in the file the damage was noticed."""
        return int(self.details["offset"])


class NewerFormat(StorageError):
    """Another version of Fasti wrote the file, mostly a newer one; it was read no further and not changed."""

    code = "newer_format"

    def __init__(
        self,
        message: str,
        *,
        found: int,
        supported: int,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        extra = {"found": found, "supported": supported, **(details or {})}
        super().__init__(message, details=extra)

    @property
    def found(self) -> int:
        """The format version in the file."""
        return int(self.details["found"])

    @property
    def supported(self) -> int:
        """The highest format version that this program reads."""
        return int(self.details["supported"])


class DataDirLocked(StorageError):
    """Another process has the data directory open."""

    code = "locked"

    def __init__(
        self,
        message: str,
        *,
        pid: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, details={"pid": pid, **(details or {})})

    @property
    def pid(self) -> int | None:
        """The process that holds the lock, when it could be read."""
        value = self.details.get("pid")
        return None if value is None else int(value)


class ClockBehind(StorageError):
    """The last event on disk is far ahead of the machine's clock: one of them is wrong."""

    code = "clock_behind"


def _classes(kind: type[FastiError]) -> Iterator[type[FastiError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _classes(below)


def error_codes() -> dict[str, type[FastiError]]:
    """All codes and their classes, sorted by code: for the doors, the docs and their tests."""
    own = (kind for kind in _classes(FastiError) if kind.__module__ == __name__)
    return dict(sorted((kind.code, kind) for kind in own))


def error_from_code(
    code: str,
    message: str,
    *,
    retry_after_us: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> FastiError:
    """The error that another process meant; a code that we don't know becomes `FastiError`.

    Called by clients for every refusal that comes over a wire.  Never raises.
    """
    kind = error_codes().get(code, FastiError)
    details_of_code = {} if kind.code == code else {"code": code}
    return _rebuild(kind, message, retry_after_us, {**(details or {}), **details_of_code})
