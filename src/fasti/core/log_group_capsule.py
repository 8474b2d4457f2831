"""The groups of a log in a checkpoint: columns of all groups and partitions one after another.

So a topic with a thousand groups has a dozen columns, not ten thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.kind import Columns
from fasti.core.log_group import Group, Groups

_NUMBERS = 4


def capture(topic: int, groups: Groups, columns: Columns) -> dict[str, Any]:
    """Names and numbers of the groups; the rest goes into columns, copied."""
    if not groups:
        return {"groups": []}
    places = [place for group in groups.by_number.values() for place in group.partitions]
    captured = [place.capture() for place in places]
    prefix = f"group.{topic}."
    columns[prefix + "numbers"] = np.array([n for numbers, _ in captured for n in numbers])
    for name in captured[0][1]:
        parts = [values[name] for _, values in captured]
        columns[prefix + name] = np.concatenate(parts)
        columns[f"{prefix}{name}.rows"] = np.array([len(part) for part in parts], dtype=np.int64)
    described = [
        [group.name, group.number, int(group.ordered)] for group in groups.by_number.values()
    ]
    return {"groups": described, "columns": list(captured[0][1])}


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
    groups = []
    for index, (name, number, ordered) in enumerate(listed):
        group = Group(name, number, bool(ordered), [0] * each)
        for partition, place in enumerate(group.partitions):
            row = index * each + partition
            place.restore(numbers[row], {column: parts[row] for column, parts in pieces.items()})
        group.is_behind = any(place.behind for place in group.partitions)
        groups.append(group)
    return groups
