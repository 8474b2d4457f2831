"""A command that belongs to a call with a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fasti.core.command import Command

if TYPE_CHECKING:
    from fasti.core.commands import Produce


@dataclass(slots=True)
class CallNumber:
    """Which call of which client it is.

    All calls of the client below `since` are answered, and won't be made again. `age_us` is how long ago
    the call was first made; 0: this is the first time.
    """

    client: str
    number: int
    since: int
    age_us: int = 0


@dataclass(slots=True)
class Numbered(Command):
    """A command to be carried out once, however often it comes. Its reply is that of the command.

    A call of several commands tells them apart by their `part`. With `chosen` the call itself has chosen
    the messages: the ids of the reply are remembered though the command names them, since whoever makes
    the call again doesn't know them; and if nothing happens, another command may follow under the number.
    """

    command: Command
    call: CallNumber
    part: int = 0
    chosen: bool = False

    @property
    def bare(self) -> Command:
        return self.command

    @property
    def parts(self) -> list[Any]:
        return self.command.parts or [self.command]

    def produces(self) -> Iterator[Produce]:
        return self.command.produces()

    def count_rows(self) -> int:
        return self.command.count_rows()

    def encode(self) -> int:
        return self.command.encode()


@dataclass(slots=True)
class Recall(Command):
    """What a command of a call was answered, under the reply's own class; Done(None): it never came.

    Raises `call_forgotten`.
    """

    call: CallNumber
    part: int = 0
