"""What happens to calls with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event, Int64s


@dataclass(slots=True)
class CallAnswered(Event):
    """A command of a call was decided, in the group of this event: its answer, should the call come again.

    `form` says what kind of reply it is; `value` is plain, and what a reply has beside its rows. Without
    `ids` the command named them.
    """

    code: ClassVar[int] = 34
    client: str
    number: int
    part: int
    since: int
    form: int
    value: Any
    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s
