"""Filters that the broker can do itself, of those that Spark offers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from fasti.client.durations import moment_us

_STATES = ("scheduled", "ready", "leased", "dead")


def pushed(view: str, filters: Iterable[Filter]) -> tuple[dict[str, Any], list[Filter]]:
    """The fields of a ticket that do some of the filters, and the filters that are left."""
    found: dict[str, Any] = {}
    rest: list[Filter] = []
    for each in filters:
        if view != "messages" or not _take(each, found):
            rest.append(each)
    return found, rest


def _take(each: Filter, found: dict[str, Any]) -> bool:
    attribute, value = getattr(each, "attribute", None), getattr(each, "value", None)
    if attribute == ("due",) and isinstance(value, datetime):
        return _take_due(each, moment_us(_aware(value), "due"), found)
    if attribute == ("state",) and isinstance(each, EqualTo) and value in _STATES:
        return found.setdefault("state", value) == value
    if attribute == ("owner",) and isinstance(each, EqualTo) and value:
        return found.setdefault("owner", value) == value
    return False


def _aware(moment: datetime) -> datetime:
    # Spark hands moments over without a zone; they are UTC.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _take_due(each: Filter, at_us: int, found: dict[str, Any]) -> bool:
    """Bounds meet: the narrowest counts."""
    if isinstance(each, (GreaterThan, GreaterThanOrEqual)):
        first = at_us + isinstance(each, GreaterThan)
        found["due_from_us"] = max(found.get("due_from_us", first), first)
        return True
    if isinstance(each, (LessThan, LessThanOrEqual)):
        end = at_us + isinstance(each, LessThanOrEqual)
        found["due_to_us"] = min(found.get("due_to_us", end), end)
        return True
    return False
