"""Ends of a pipeline's steps: their options are looked at where they are written."""

from collections.abc import Callable
from typing import Any

import pytest

from fasti.errors import InvalidArgument
from fasti.pipeline import changes, kv, log, messages, topic


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: topic("out", "upsert"), "expected produce or update or move or cancel or put"),
        (lambda: topic("out", onConflct="skip"), "did you mean 'onConflict'?"),
        (lambda: topic("out", "cancel", onConflict="skip"), "onConflict is for operation"),
        (lambda: messages("in", state="asleep"), "expected some of scheduled"),
        (lambda: changes("in", op="gone"), "expected some of produced"),
        (lambda: log("in", maxOffsets=3), "has no option 'maxOffsets'"),
        (lambda: log("in", failOnDataLoss="no"), "expected true or false"),
        (lambda: kv("in", state="dead"), "not for view 'kv'"),
    ],
)
def test_options_that_make_no_sense_are_refused(end: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        end()
    assert told in info.value.message


def test_logs_and_entries_take_options_for_reading_or_for_writing() -> None:
    assert log("in", maxOffsetsPerTrigger=1000, failOnDataLoss=False).streamed
    assert log("out", owner="me").options == {"owner": "me"}
    assert kv("in", prefix="user-").options == {"prefix": "user-"}
    assert changes(payload=True).topic is None
