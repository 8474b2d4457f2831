"""What tables a lake has: names, rows, versions, sizes; and their rows. Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from fasti.errors import NotFound
from fasti.pipeline.lake import Lake
from fasti.pipeline.tables import Table


@dataclass(frozen=True, slots=True)
class TableSize:
    """How large a table is."""

    name: str
    rows: int
    version: int
    files: int
    size_bytes: int


def tables(lake: Lake) -> dict[str, Table]:
    """All that are there, by the names that people use."""
    known = {"transitions": lake.bronze, "messages": lake.messages, "topics": lake.topics}
    for place in sorted((lake.root / "gold").glob("*/")):
        known[place.name] = lake.gold(place.name)
    for place in sorted((lake.root / "tables").glob("*/")):
        known[f"tables/{place.name}"] = _of_user(lake, place.name)
    return {name: table for name, table in known.items() if table.exists()}


def _of_user(lake: Lake, name: str) -> Table:
    """With the partition columns that its writer gave it, as its files tell."""
    written = next(iter(lake.table(name).files()), None)
    return lake.table(name, *(written.partition if written is not None else ()))


def inventory(lake: Lake) -> list[TableSize]:
    """The sizes of all tables, bronze first."""
    sizes = []
    for name, table in tables(lake).items():
        files = table.files()
        size = sum(file.size_bytes for file in files)
        rows = sum(file.rows for file in files)
        sizes.append(TableSize(name, rows, table.version() or 0, len(files), size))
    return sizes


def first_rows(lake: Lake, name: str, limit: int) -> pa.Table:
    """Some rows of a table. Raises `not_found`."""
    known = tables(lake)
    if name not in known:
        raise NotFound(f"there is no table {name!r} in {lake.root}: {', '.join(known) or 'none'}")
    return known[name].dataset().head(limit)
