"""How rows are cut into pieces on their way into a stage."""

from typing import Any, cast

import pyarrow as pa

from fasti.client.sinks import StageWriter
from fasti.model import Limits


def test_pieces_fit_however_different_their_rows_are() -> None:
    descriptor = {"sink": "s", "topic": "t", "batch": 0, "partition": 0, "attempt": 0}
    writer = StageWriter(cast(Any, None), descriptor, Limits())
    large = [b"x" * (1 << 20)] * 20
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b""] * 50_000 + large)})
    found = writer._pieces(batch)
    assert max(piece.nbytes for piece in found) <= 8 << 20
    assert pa.Table.from_batches(found).column("payload").to_pylist() == [b""] * 50_000 + large
