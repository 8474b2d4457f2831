"""One message is named by plain values, with the values and the errors that a batch has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.client import target
from fasti.client.messages import Messages
from fasti.client.outcomes import Outcomes, outcome_of_reply
from fasti.errors import FastiError
from fasti.protocol.single_row import SingleRow, as_batch
from tests.unit.client.fakes import FakeTransport

AT = datetime(2040, 1, 1, tzinfo=UTC)
NAMES: list[dict[str, Any]] = [
    {"id": 7},
    {"id": np.int32(7)},
    {"id": -1},
    {"key": "a"},
    {"key": ""},
    {"key": "größe", "version": 3},
    {"id": 7, "version": 0},
    {},
    {"id": 7, "key": "a"},
    {"id": True},
    {"id": "7"},
    {"id": 7.0},
    {"id": 1 << 63},
    {"key": 7},
    {"key": b"a"},
    {"key": "\ud800"},
    {"id": 7, "version": 1 << 63},
    {"id": 7, "version": "3"},
    {"id": 7, "version": 1.5},
    {"id": 7, "version": True},
    {"id": 7, "version": [3]},
    {"id": 7, "version": [3, 4]},
]
WHEN: list[dict[str, Any]] = [
    {},
    {"delay": "5m"},
    {"delay": 0},
    {"delay": timedelta(seconds=2)},
    {"delay": -1},
    {"delay": True},
    {"delay": float("nan")},
    {"delay": "soon"},
    {"delay": ["5m"]},
    {"delay": ["5m", "6m"]},
    {"at": AT},
    {"at": AT.replace(tzinfo=None)},
    {"at": 5},
    {"at": [AT]},
    {"due": 5},
    {"due": AT},
    {"due": -5},
    {"due": "soon"},
    {"due": 5, "delay": 5},
    {"due": 5, "expires": "1h"},
    {"due": 5, "expires": AT},
    {"due": 5, "expires": 0},
    {"due": 5, "expires": ["1h"]},
    {"due": 5, "expires": np.array([1])},
]


def asked(call: Any, arguments: dict[str, Any]) -> Any:
    """What is asked of the broker, or the error."""
    transport = FakeTransport()
    try:
        answer = call(Messages(transport, "t", "me"))(**arguments)
    except (FastiError, UnicodeEncodeError) as error:
        return type(error), str(error)
    ((action, header, (part,)),) = transport.calls
    batch = as_batch(part)
    return action, header, batch.schema, batch.to_pydict(), answer


@pytest.mark.parametrize("named", NAMES, ids=repr)
def test_one_is_what_a_batch_of_one_is(
    named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [(lambda m: m.cancel, named), (lambda m: m.cancel, named | {"dry_run": True})]
    calls += [(lambda m: m.move, named | when) for when in WHEN]
    plain = [asked(*call) for call in calls]
    monkeypatch.setattr(target, "_row", lambda *_: None)
    assert [asked(*call) for call in calls] == plain


def test_one_needs_no_arrow() -> None:
    transport = FakeTransport()
    messages = Messages(transport, "t")
    assert messages.cancel(key="a", version=2).ok
    assert messages.move(id=np.int64(7), delay="1s", expires="2s").ok
    assert messages.move(id=7, at=AT).ok
    parts = [part for _, _, (part,) in transport.calls]
    assert all(isinstance(part, SingleRow) for part in parts)
    values = [part.values for part in parts if isinstance(part, SingleRow)]
    assert values[:2] == [
        {"key": "a", "version": 2},
        {"id": 7, "delay_us": 1_000_000, "expires_after_us": 2_000_000},
    ]


def test_a_list_of_one_is_a_batch() -> None:
    transport = FakeTransport()
    answer = Messages(transport, "t").move(id=[7], delay="1s")
    assert isinstance(answer, Outcomes)
    ((_, _, (part,)),) = transport.calls
    assert part.equals(pa.RecordBatch.from_pydict({"id": [7], "delay_us": [1_000_000]}))


@pytest.mark.parametrize(
    "header",
    [
        {"status": [["ok", 1]], "versions": [[2, 1]], "ids": [[7, 1]]},
        {"status": [["ok", 1]], "versions": [[2, 1]]},
        {"status": [["duplicate", 1]], "versions": [[2, 1]], "ids": [[0, 1]], "sent_before": True},
        {
            "status": [["leased", 1]],
            "versions": [[2, 1]],
            "ids": [[7, 1]],
            "by": {"0": "w"},
            "at_us": {"0": 9},
        },
        {"status": [["dead", 1]], "versions": [[2, 1]], "ids": [[7, 1]], "reasons": {"0": "why"}},
        {"status": [["ok", 1]], "versions": [["2", 1]], "ids": [[7, 1]]},
        {"status": [["odd", 1]], "versions": [[2, 1]], "ids": [[7, 1]]},
        {"status": 3},
        {},
    ],
    ids=repr,
)
def test_an_outcome_is_that_of_columns(header: dict[str, Any]) -> None:
    def told(read: Any) -> Any:
        try:
            return read(header)
        except FastiError as error:
            return type(error), str(error)

    assert told(outcome_of_reply) == told(lambda header: Outcomes.of_reply(header)[0])
