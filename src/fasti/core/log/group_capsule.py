"""The groups of a log in a checkpoint: columns of all groups and partitions one after another.

So a topic with a thousand groups has a dozen columns, not ten thousand. A place where nothing is
out and nothing is dead is four numbers: the engine copies this in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.kind import Columns
from fasti.core.log.group import Group, Groups
from fasti.core.state import ignore

_NUMBERS = 4


def capture(topic: int, groups: Groups, columns: Columns) -> dict[str, Any]:
    """Names and numbers of the groups; the rest goes into columns, copied."""
    if not groups:
        return {"groups": []}
    busy, captured, begin = [], [], 0
    numbers = np.concatenate([_numbers(group) for group in groups.by_number.values()])
    for group in groups.by_number.values():
        for number in group.partitions.numbers():
            place = group.partitions[number]
            if not place.is_idle:
                busy.append(begin + number)
                captured.append(place.columns())
        begin += len(group.partitions)
    prefix = f"group.{topic}."
    columns[prefix + "numbers"] = numbers.reshape(-1)
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


def _numbers(group: Group) -> NDArray[np.int64]:
    """Four numbers for each of its places."""
    numbers = np.zeros((len(group.partitions), _NUMBERS), dtype=np.int64)
    numbers[:, :2] = group.offsets[:, None]
    for number in group.partitions.numbers():
        numbers[number] = group.partitions[number].numbers()
    return numbers


def restore(
    topic: int,
    described: dict[str, Any],
    columns: Columns,
    note: Callable[[int], None] = ignore,
) -> list[Group]:
    """The groups, back from `capture`; `note` is told of the places that are made."""
    listed = described["groups"]
    if not listed:
        return []
    prefix = f"group.{topic}."
    numbers = columns[prefix + "numbers"].reshape(len(listed), -1, _NUMBERS)
    pieces: dict[str, list[NDArray[Any]]] = {}
    for name in described["columns"]:
        ends = np.cumsum(columns[f"{prefix}{name}.rows"])
        pieces[name] = np.split(columns[prefix + name], ends[:-1])
    groups = [
        Group(name, number, bool(ordered), its[:, 0].copy(), note)
        for (name, number, ordered), its in zip(listed, numbers, strict=True)
    ]
    for group, its in zip(groups, numbers, strict=True):
        # Where nothing is out and nothing was lost, the offset says it all.
        told = (its[:, 0] != its[:, 1]) | (its[:, 2:] != 0).any(axis=1)
        for number in np.flatnonzero(told).tolist():
            group.partitions[number].restore_numbers(its[number].tolist())
    each = numbers.shape[1]
    for row, place in enumerate(columns[prefix + "busy"].tolist()):
        group, number = place // each, place % each
        mine = {name: parts[row] for name, parts in pieces.items()}
        groups[group].partitions[number].restore(numbers[group, number].tolist(), mine)
    for group in groups:
        group.is_behind = any(place.behind for place in group.partitions.made())
    return groups
