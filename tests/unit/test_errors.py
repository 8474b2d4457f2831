"""The names and codes of errors are a promise to other processes: they are pinned here."""

from __future__ import annotations

import json
import pickle

import pytest

from fasti import errors

PINNED = {
    "aborted": "TransactionAborted",
    "already_exists": "AlreadyExists",
    "clock_behind": "ClockBehind",
    "call_forgotten": "CallForgotten",
    "closed": "Closed",
    "corruption": "Corruption",
    "cross_shard": "CrossShard",
    "error": "FastiError",
    "fenced": "Fenced",
    "gone": "Gone",
    "illegal_transition": "IllegalTransition",
    "internal": "InternalError",
    "invalid_argument": "InvalidArgument",
    "locked": "DataDirLocked",
    "moved": "Moved",
    "newer_format": "NewerFormat",
    "no_quorum": "NoQuorum",
    "not_found": "NotFound",
    "overloaded": "Overloaded",
    "permission_denied": "PermissionDenied",
    "rows_failed": "RowsFailed",
    "storage_error": "StorageError",
    "storage_failed": "StorageFailed",
    "storage_full": "StorageFull",
    "timed_out": "TimedOut",
    "topic_mismatch": "TopicMismatch",
    "unauthenticated": "Unauthenticated",
    "unavailable": "Unavailable",
    "unknown": "OutcomeUnknown",
    "unknown_producer": "UnknownProducer",
    "wrong_shard": "WrongShard",
}
RETRYABLE = {
    *("moved", "no_quorum", "overloaded", "storage_full", "timed_out", "unavailable", "unknown")
}


def test_names_and_codes_are_pinned() -> None:
    assert {code: kind.__name__ for code, kind in errors.error_codes().items()} == PINNED


def test_retryable_codes_are_pinned() -> None:
    assert {code for code, kind in errors.error_codes().items() if kind.retryable} == RETRYABLE


def test_every_class_is_public_and_drawn_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    for code, kind in errors.error_codes().items():
        assert kind.__name__ in errors.__all__
        assert any(
            kind.__name__ in line and f" {code}" in line for line in errors.__doc__.splitlines()
        ), code


def test_a_program_can_read_what_was_wrong() -> None:
    bad = errors.InvalidArgument("payload is too large", field="payload", limit=1_048_576)
    assert (bad.field, bad.limit, str(bad)) == ("payload", 1_048_576, "payload is too large")
    torn = errors.Corruption("bad checksum", file="journal/1.segment", offset=4096)
    assert (torn.file, torn.offset) == ("journal/1.segment", 4096)
    newer = errors.NewerFormat("newer", found=3, supported=1)
    assert (newer.found, newer.supported) == (3, 1)
    assert errors.DataDirLocked("locked", pid=7).pid == 7
    assert errors.DataDirLocked("locked").pid is None
    assert errors.TopicMismatch("differs", differing=["lease", "kind"]).differing == [
        "kind",
        "lease",
    ]
    assert errors.Overloaded("full", retry_after_us=5).retry_after_us == 5


@pytest.mark.parametrize(
    "error",
    [
        errors.Corruption("bad", file="a", offset=1, details={"sequence": 9}),
        errors.Overloaded("full", retry_after_us=1000),
        errors.InvalidArgument("bad", field="key", limit=512),
    ],
)
def test_errors_survive_pickling_and_the_wire(error: errors.FastiError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    wire = errors.error_from_code(
        error.code,
        error.message,
        retry_after_us=error.retry_after_us,
        details=json.loads(json.dumps(error.details)),
    )
    for again in (copy, wire):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.retry_after_us == error.retry_after_us
        assert again.details == error.details


def test_an_unknown_code_from_a_newer_peer_is_kept() -> None:
    error = errors.error_from_code("strange", "what")
    assert type(error) is errors.FastiError
    assert error.details["code"] == "strange"
