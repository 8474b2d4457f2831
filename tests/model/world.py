"""The world of the leadership model: a stream, a pointer, blocks, a network that loses and delays.

A state is one hashable value. Brokers drive the real machines of `fasti.cluster`; only what NATS and the
network do is modelled here:

- The stream takes a pack if its last sequence is the expected one; the pointer a value if its revision is.
- A request arrives and is answered; or arrives and the answer is lost; or does not arrive now, and the
  broker hears nothing, or hears a refusal that is not true (CLUSTER, "What follows", 2). What has not
  arrived may arrive at any later time, or never: that is delay, loss and doubling (with the repeat) in one.
- What would be refused for ever is taken out of the network: sequences and revisions never go back.
- Trimming hides places from readers. The history stays in the state, for the invariants alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fasti.cluster.pack_reader import PackHeader, PackReader
from fasti.cluster.pointer_owner import FreeSpace
from fasti.cluster.writer import PointerHeader


class FrameId(NamedTuple):
    """Which frame of whose leadership: what a caller was told about."""

    epoch: int
    nonce: int
    number: int


class Entry(NamedTuple):
    """A pack in the stream; `whole`: with it, its group of frames is finished."""

    header: PackHeader
    whole: bool

    @property
    def frames(self) -> tuple[FrameId, ...]:
        header = self.header
        numbers = range(header.first_frame, header.last_frame + 1)
        return tuple(FrameId(header.epoch, header.nonce, number) for number in numbers)


class Manifest(NamedTuple):
    """What a checkpoint holds; its blocks' names, its own among them."""

    name: str
    sequence: int
    reader: PackReader
    frames: tuple[FrameId, ...]
    blocks: frozenset[str]


class Publish(NamedTuple):
    entry: Entry
    expected_last: int


class WritePointer(NamedTuple):
    expected_revision: int
    value: PointerHeader


class Delete(NamedTuple):
    blocks: frozenset[str]


class Trim(NamedTuple):
    sequence: int


Message = Publish | WritePointer | Delete | Trim


class Budget(NamedTuple):
    """How much may still happen: the bounds of the search."""

    packs: int = 3
    take_overs: int = 2
    faults: int = 2
    crashes: int = 1
    checkpoints: int = 0
    follows: int = 0
    yields: int = 0


class Broker(NamedTuple):
    """One broker: its machines' fields, its engine, and what it is doing."""

    writer: tuple[Any, ...]
    action: Any = None
    frames: tuple[FrameId, ...] = ()
    held: tuple[FrameId, ...] = ()
    # Whether the pack in flight finishes its group.
    whole: bool = True
    owner: tuple[Any, ...] | None = None
    owner_action: Any = None
    garbage: tuple[Delete | Trim, ...] = ()


class Acknowledgement(NamedTuple):
    sequence: int
    epoch: int
    frames: tuple[FrameId, ...]


class World(NamedTuple):
    brokers: tuple[Broker, ...]
    budget: Budget
    stream: tuple[Entry, ...] = ()
    trimmed: int = 0
    pointer: PointerHeader | None = None
    blocks: frozenset[str] = frozenset()
    manifests: tuple[Manifest, ...] = ()
    network: frozenset[Message] = frozenset()
    acknowledged: frozenset[Acknowledgement] = frozenset()
    # Frames whose callers were told that nothing was done.
    moved: frozenset[FrameId] = frozenset()

    def manifest(self, name: str) -> Manifest:
        return next(manifest for manifest in self.manifests if manifest.name == name)

    def arrive(self, message: Message) -> tuple[World, int]:
        """A message reaches NATS. Gives the sequence or revision; 0: refused."""
        if isinstance(message, Publish):
            if message.expected_last != len(self.stream):
                return self, 0
            stream = (*self.stream, message.entry)
            return self._replace(stream=stream)._prune(), len(stream)
        if isinstance(message, WritePointer):
            revision = self.pointer.revision if self.pointer else 0
            if message.expected_revision != revision:
                return self, 0
            value = message.value._replace(revision=revision + 1)
            return self._replace(pointer=value)._prune(), revision + 1
        if isinstance(message, Trim):
            return self._replace(trimmed=max(self.trimmed, message.sequence)), 1
        return self._replace(blocks=self.blocks - message.blocks), 1

    def delay(self, message: Message) -> World:
        return self._replace(network=self.network | {message})._prune()

    def _prune(self) -> World:
        """Without what would be refused for ever."""
        last, revision = len(self.stream), self.pointer.revision if self.pointer else 0
        alive = frozenset(
            message
            for message in self.network
            if not (isinstance(message, Publish) and message.expected_last < last)
            and not (isinstance(message, WritePointer) and message.expected_revision < revision)
        )
        return self if alive == self.network else self._replace(network=alive)

    def spend(self, **amounts: int) -> World | None:
        """With less of the budget; None if it is used up."""
        left = {name: getattr(self.budget, name) - amount for name, amount in amounts.items()}
        if min(left.values()) < 0:
            return None
        return self._replace(budget=self.budget._replace(**left))


def space(free: FreeSpace) -> tuple[Delete | Trim, ...]:
    """What an owner deletes, as messages that arrive one by one."""
    return (Trim(free.trim_to), *([Delete(free.blocks)] if free.blocks else []))
