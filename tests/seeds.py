"""How many of a test's seeds are run."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(quick: int, all_of_them: range) -> list[Any]:
    """The first few in every run, the others with `make test-long`."""
    later = [pytest.param(seed, marks=pytest.mark.long) for seed in all_of_them[quick:]]
    return [*all_of_them[:quick], *later]
