"""What happens to calls with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event, Int64s

# What kind of reply it is: written into the journal, for ever. In an even one all rows are alike, and their
# ids are those that the command names: so it mostly is, and it takes no columns.
REPLY, TRANSACTION, DONE, EVEN = range(4)


@dataclass(slots=True)
class CallAnswered(Event):
    """A command of a call was decided, in the group of this event: its answer, should the call come again.

    `form` says what kind of reply it is, `value` is plain, and all that there is to say of it.
    """

    code: ClassVar[int] = 34
    client: str
    number: int
    part: int
    since: int
    form: int
    value: Any


@dataclass(slots=True)
class RowsAnswered(CallAnswered):
    """The same of a reply with rows that are not alike; `value` is what it has beside them.

    Without `ids` the command named them.
    """

    code: ClassVar[int] = 35
    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s
