"""One row by its values gives the command, and the error, that it gives as a batch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.calls import changing, requests
from fasti.broker.service import Service
from fasti.core import commands as co
from fasti.core.keys import Keys
from fasti.core.work import column
from fasti.errors import FastiError
from fasti.model import DUE_MAX_US, Limits
from fasti.protocol.envelope import dump, unpack
from fasti.protocol.single_row import SingleRow, as_batch

SEED = (3, 5)
FIELDS = {"topic": "t", "owner": "me"}
INT64_MAX = (1 << 63) - 1


class OneShard:
    """As much of a service as commands are made with."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.placement = self.store = self
        self.seed = SEED

    def shard_of(self, topic: str) -> OneShard:
        return self


def command(op: str, part: Any) -> Any:
    return changing.command(cast(Service, OneShard()), op, FIELDS, part)


def told(op: str, part: Any) -> Any:
    """The command in comparable form, or the whole error."""
    try:
        made = command(op, part)
    except FastiError as error:
        return type(error), error.message, error.details, str(error)
    keys, ids = made.target.keys, made.target.ids
    told: list[Any] = [type(made), made.topic, made.owner, made.dry_run]
    told.append(None if keys is None else (keys.hashes.tolist(), keys.values.to_pylist()))
    told.append(None if ids is None else (ids.dtype, ids.tolist()))
    told.append(column(made.versions, 1, "version").tolist())
    if isinstance(made, co.Move):
        moments = (made.when.due_us, made.when.delay_us)
        told += [None if m is None else column(m, 1, "due").tolist() for m in moments]
        if made.expires is not None:
            both = (made.expires.at_us, made.expires.after_us)
            told += [None if m is None else (m.dtype, m.tolist()) for m in both]
    return told


def part_of(columns: dict[str, Any]) -> Any:
    """As it comes over the wire."""
    text = dump({"parts": [columns]})
    _, (part,) = unpack(len(text).to_bytes(4, "little") + text, of_request=True)
    return part


NAMED: list[dict[str, Any]] = [
    {"key": ["a"]},
    {"key": [""]},
    {"key": ["größe"]},
    {"key": ["a\0b"]},
    {"key": ["k" * 5_000]},
    {"id": [7]},
    {"id": [0]},
    {"id": [-1]},
    {"id": [INT64_MAX]},
    {"id": [-INT64_MAX - 1]},
    {"key": ["a"], "version": [3]},
    {"id": [7], "version": [0]},
    {"id": [7], "version": [-3]},
    # Without a name, or with two; of another type; what nobody knows.
    {"version": [3]},
    {"key": ["a"], "id": [7]},
    {"key": [7]},
    {"id": ["7"]},
    {"id": [7], "version": ["3"]},
    {"id": [7], "color": ["red"]},
    {"größe": [7]},
    {"id": [7], "payload": ["x"]},
    {"id": [7], "priority": [1]},
    {"id": [7], "content_type": ["text"]},
]
WHEN: list[dict[str, Any]] = [
    {},
    {"due_us": [1]},
    {"due_us": [0]},
    {"due_us": [-1]},
    {"delay_us": [5]},
    {"delay_us": [DUE_MAX_US]},
    {"delay_us": [INT64_MAX]},
    {"due_us": ["soon"]},
    {"due_us": [1], "delay_us": [1]},
    {"due_us": [1], "expires_us": [9]},
    {"due_us": [1], "expires_us": [0]},
    {"due_us": [1], "expires_after_us": [9]},
    {"due_us": [1], "expires_after_us": [-9]},
    {"due_us": [1], "expires_us": [9], "expires_after_us": [9]},
    {"due_us": [1], "expires_us": [0], "expires_after_us": [0]},
    {"expires_us": [9]},
    {"expires_us": [0]},
    {"due_us": [1], "delay_us": [1], "expires_us": [0]},
]


@pytest.mark.parametrize("op", ["cancel", "move", "update"])
@pytest.mark.parametrize("named", NAMED, ids=str)
def test_a_row_is_judged_as_a_batch_is(op: str, named: dict[str, Any]) -> None:
    for when in WHEN:
        part = part_of(named | when)
        assert isinstance(part, SingleRow) == ("größe" not in named)
        assert told(op, part) == told(op, as_batch(part))


def test_good_rows_need_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    row = part_of({"key": ["a"], "version": [3], "delay_us": [5], "expires_after_us": [9]})
    monkeypatch.setattr(requests, "one_batch", None)
    moved = command("move", row)
    assert moved.when == co.When(delay_us=5)
    assert (moved.versions, moved.owner) == (3, "me")
    cancelled = command("cancel", part_of({"id": [7]}))
    assert cancelled.target.ids.tolist() == [7]


@pytest.mark.parametrize("key", ["", "a", "größe", "k" * 100])
def test_one_key_is_what_a_column_of_one_is(key: str) -> None:
    one, column_of_one = Keys(key, SEED), Keys(pa.array([key]), SEED)
    assert len(one) == 1
    assert (one.hashes == column_of_one.hashes).all()
    assert (one.routes == column_of_one.routes).all()
    assert one.values.equals(column_of_one.values)
    assert one.given.tolist() == [True]
    assert (one.partitions(12) == column_of_one.partitions(12)).all()
    assert (one.ranked(12) == column_of_one.ranked(12)).all()
    assert one.hashes.dtype == np.uint64
