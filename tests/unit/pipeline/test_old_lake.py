"""A lake whose positions don't name the shard is not added to: its rows would be there twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fasti.errors import Gone
from fasti.pipeline.bronze import starting_position
from fasti.testing import VirtualBroker


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
def test_a_lake_of_an_older_version_is_refused_with_what_to_do(tmp_path: Path, on_gap: str) -> None:
    (tmp_path / "shards").write_text("9f3c01d2ab45e678\n")
    table = SimpleNamespace(position=lambda name: None)
    with VirtualBroker() as broker:
        run: Any = SimpleNamespace(
            lake=SimpleNamespace(root=tmp_path, bronze=table),
            client=broker.client(),
            on_gap=on_gap,
            address="-",
        )
        with pytest.raises(Gone, match=r"older version.* begin a new lake in another directory"):
            starting_position(run, broker.client().feed().last.shard)
