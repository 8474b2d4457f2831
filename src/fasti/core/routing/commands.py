"""What can be asked about bindings, and where the rows of a produce go besides its topic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import Command

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Routes:
    """Worked out by the handler's thread under one version of the topic's bindings."""

    version: int
    # Topic, and which rows of the batch go there.
    targets: list[tuple[str, Int64s]] = field(default_factory=list)


@dataclass(slots=True)
class Bind(Command):
    """What a topic gets under subjects that fit the pattern goes to the target too."""

    topic: str
    pattern: str
    target: str


@dataclass(slots=True)
class Unbind(Command):
    """Ends a binding; `not_found` if there is none."""

    topic: str
    pattern: str
    target: str


@dataclass(slots=True)
class ReadBindings(Command):
    """Done(value=(version, [(pattern, target), ...]))."""

    topic: str
