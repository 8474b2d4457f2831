"""Offsets that a checkpoint keeps: those of another query are refused with what to do."""

import pytest

from fasti.client.changes import Position
from fasti.errors import InvalidArgument
from fasti.spark.places import of_log, position_of


def test_a_checkpoint_of_a_log_is_not_taken_for_positions_of_the_feed() -> None:
    name = "0.9f3c01d2ab45e678"
    assert position_of({name: 97}) == Position(name, 97)
    with pytest.raises(InvalidArgument, match=r"older version.* a new checkpointLocation"):
        position_of({"9f3c01d2ab45e678": 97})
    with pytest.raises(InvalidArgument, match=r"of changes: .* a checkpointLocation of its own"):
        position_of({"log": "9f3c:4", "0": 12})


def test_a_checkpoint_of_the_feed_is_not_taken_for_offsets_of_a_log() -> None:
    offsets = {"log": "9f3c:4", "0": 12}
    assert of_log(offsets, "clicks") == offsets
    with pytest.raises(InvalidArgument, match=r"of log 'clicks': .* a checkpointLocation of its"):
        of_log({"9f3c": 97}, "clicks")
