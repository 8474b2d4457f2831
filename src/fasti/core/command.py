"""What a command says of itself: how much it weighs, and what it is made of.

A caller's thread asks, before the command waits for its step, so neither the shard nor the inbox has a
list of commands. A command extends the class that fits what it brings or names: rows with payloads,
ids, keys, a target, or other commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from fasti.core.commands import Produce, Target
    from fasti.core.events import Int64s
    from fasti.core.keys import Keys, Rows


class Command:
    """Everything that a step of the engine can be given."""

    __slots__ = ()
    # It may wait for everything that is not bulk.
    is_bulk: ClassVar[bool] = False
    # It means nothing to an engine that doesn't know its session.
    needs_session: ClassVar[bool] = False
    # A session's word about itself: it is said once, and is heard when the shard can hear.
    is_word: ClassVar[bool] = False
    # Its answer is about single messages or a count of them, so it must not be an old state's, whether it
    # has changed anything or not. A leader that was deposed and doesn't know it would have one.
    needs_proof: ClassVar[bool] = False

    @property
    def bare(self) -> Command:
        """The command itself, without the number of a call."""
        return self

    @property
    def parts(self) -> list[Any]:
        """The commands that it is made of."""
        return []

    def named_ids(self) -> Int64s | None:
        """The ids of messages that it names, if it does."""
        return None

    def produces(self) -> Iterator[Produce]:
        """Every `Produce` in it."""
        return iter(())

    def count_rows(self) -> int:
        """Rows that it counts for in the inbox and in a step."""
        return 1

    def encode(self) -> int:
        """Encodes its payloads, so that the committer only has to write them.

        Returns the bytes that they take in the journal, about. Raises `invalid_argument`.
        """
        return 0


class WithPayloads(Command):
    """It brings a payload for each row."""

    __slots__ = ()
    needs_proof: ClassVar[bool] = True
    rows: Rows

    def count_rows(self) -> int:
        return len(self.rows)

    def encode(self) -> int:
        return len(self.rows.encoded) + 64 * len(self.rows)


class ByIds(Command):
    """It names messages by id."""

    __slots__ = ()
    needs_proof: ClassVar[bool] = True
    ids: Int64s

    def named_ids(self) -> Int64s | None:
        return self.ids

    def count_rows(self) -> int:
        return len(self.ids)


class ByKeys(Command):
    """It names entries by key."""

    __slots__ = ()
    needs_proof: ClassVar[bool] = True
    keys: Keys

    def count_rows(self) -> int:
        return len(self.keys)


class ByTarget(Command):
    """It names messages by id or by key."""

    __slots__ = ()
    needs_proof: ClassVar[bool] = True
    target: Target

    def named_ids(self) -> Int64s | None:
        return self.target.ids

    def count_rows(self) -> int:
        return len(self.target)


class BySequences(Command):
    """It names rows of one partition."""

    __slots__ = ()
    sequences: Int64s

    def count_rows(self) -> int:
        return len(self.sequences)


class Compound(Command):
    """It is made of other commands."""

    __slots__ = ()
    needs_proof: ClassVar[bool] = True
    commands: list[Any]

    @property
    def parts(self) -> list[Any]:
        return self.commands

    def produces(self) -> Iterator[Produce]:
        for part in self.commands:
            yield from part.produces()

    def count_rows(self) -> int:
        return sum(part.count_rows() for part in self.commands)

    def encode(self) -> int:
        return sum(part.encode() for part in self.commands)
