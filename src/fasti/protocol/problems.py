"""Errors as JSON: the same object in replies, receipts, sessions and Flight's `extra_info`."""

from __future__ import annotations

from typing import Any

from fasti.errors import FastiError, error_from_code

_QUOTED_MAX = 500


def error_to_json(error: FastiError) -> dict[str, Any]:
    """What a client is told."""
    return {
        "code": error.code,
        "message": _short(error.message),
        "retryable": error.retryable,
        "retry_after_us": error.retry_after_us,
        "details": {
            name: _short(value) if isinstance(value, str) else value
            for name, value in error.details.items()
        },
    }


def _short(text: str) -> str:
    """A refusal may quote what was wrong, but not at length: it has to fit a status' trailer."""
    return text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "…"


def error_from_json(problem: dict[str, Any]) -> FastiError:
    """The error that the broker meant. Never raises."""
    details = problem.get("details")
    return error_from_code(
        str(problem.get("code", "error")),
        str(problem.get("message", "")),
        retry_after_us=problem.get("retry_after_us"),
        details=details if isinstance(details, dict) else None,
    )
