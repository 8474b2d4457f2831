"""The groups of a log in a checkpoint: columns of all groups and partitions one after another.

So a topic with a thousand groups has a dozen columns, not ten thousand. A place where nothing is
out and nothing is dead is four numbers: the sequencer copies this between two steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.kind import Columns
from fasti.core.log.group import Group, Groups

_NUMBERS = 4


def capture(topic: int, groups: Groups, columns: Columns) -> dict[str, Any]:
    """Names and numbers of the groups; the rest goes into columns, copied."""
    if not groups:
        return {"groups": []}
    places = [place for group in groups.by_number.values() for place in group.partitions]
    numbers = [number for place in places for number in place.numbers()]
    busy = [row for row, place in enumerate(places) if not place.is_idle]
    captured = [places[row].columns() for row in busy]
    prefix = f"group.{topic}."
    columns[prefix + "numbers"] = np.array(numbers, dtype=np.int64)
    columns[prefix + "busy"] = np.array(busy, dtype=np.int64)
    names = list(captured[0]) if captured else []
    for name in names:
        parts = [values[name] for values in captured]
        columns[prefix + name] = np.concatenate(parts)
        columns[f"{prefix}{name}.rows"] = np.array([len(part) for part in parts], dtype=np.int64)
    described = [
        [group.name, group.number, int(group.ordered)] for group in groups.by_number.values()
    ]
    return {"groups": described, "columns": names}


def restore(topic: int, described: dict[str, Any], columns: Columns) -> list[Group]:
    """The groups, back from `capture`."""
    listed = described.get("groups", [])
    if not listed:
        return []
    prefix = f"group.{topic}."
    numbers = columns[prefix + "numbers"].reshape(-1, _NUMBERS).tolist()
    pieces: dict[str, list[NDArray[Any]]] = {}
    for name in described["columns"]:
        ends = np.cumsum(columns[f"{prefix}{name}.rows"])
        pieces[name] = np.split(columns[prefix + name], ends[:-1])
    each = len(numbers) // len(listed)
    groups = [Group(name, number, bool(ordered), [0] * each) for name, number, ordered in listed]
    places = [place for group in groups for place in group.partitions]
    for place, its in zip(places, numbers, strict=True):
        place.restore_numbers(its)
    for row, place in enumerate(columns[prefix + "busy"].tolist()):
        places[place].restore(numbers[place], {name: parts[row] for name, parts in pieces.items()})
    for group in groups:
        group.is_behind = any(place.behind for place in group.partitions)
    return groups
