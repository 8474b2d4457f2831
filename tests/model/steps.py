"""All that can happen next in a state of the leadership model. The brokers run the real machines.

What a broker does by itself (apply what it has just read, answer its callers) is one step with what made
it so; everything that touches NATS is a step of its own, so that anything may come between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import fasti.cluster.writer_actions as act
from fasti.cluster.pointer_owner import FreeSpace, PointerOwner
from fasti.cluster.writer import MISSING, TRIMMED, NoPack, PackHeader, Role, Writer
from tests.model.invariants import Violation, apply
from tests.model.world import (
    Acknowledgement,
    Broker,
    Budget,
    Delete,
    Entry,
    FrameId,
    Manifest,
    Message,
    Publish,
    Trim,
    World,
    WritePointer,
    space,
)

Step = tuple[str, World]
M = TypeVar("M")


class Rules(NamedTuple):
    """The machines that brokers run: the real ones, or broken ones to see that the model notices."""

    writer: type[Writer] = Writer
    owner: type[PointerOwner] = PointerOwner
    # The nonce of a broker's process, by the broker's number and its life.
    nonce: Callable[[int, int], int] = lambda broker, life: 10 * (broker + 1) + life


def begin(budget: Budget, rules: Rules, brokers: int = 2) -> World:
    return World(tuple(newborn(number, 0, rules) for number in range(brokers)), budget)


def newborn(number: int, life: int, rules: Rules) -> Broker:
    return Broker(freeze(rules.writer("abc"[number], rules.nonce(number, life))))


def freeze(machine: Writer | PointerOwner) -> tuple[Any, ...]:
    base = Writer if isinstance(machine, Writer) else PointerOwner
    return tuple([getattr(machine, name) for name in base.__slots__])


def thaw(kind: type[M], fields: tuple[Any, ...]) -> M:
    machine = kind.__new__(kind)
    base = Writer if issubclass(kind, Writer) else PointerOwner
    for name, value in zip(base.__slots__, fields, strict=True):
        setattr(machine, name, value)
    return machine


def steps(world: World, rules: Rules) -> Iterator[Step]:
    for number in range(len(world.brokers)):
        turn = Turn(world, number, rules)
        for what, after in turn.steps():
            yield f"{'abc'[number]} {what}", after
    for message in world.network:
        after, result = world.arrive(message)
        after = after._replace(network=after.network - {message})
        yield f"late: {describe(message)}: {result or 'refused'}", after


class Turn:
    """What one broker may do in one state."""

    def __init__(self, world: World, number: int, rules: Rules) -> None:
        self.world, self.number, self.rules = world, number, rules
        self.broker = world.brokers[number]
        self.role: Role = self.broker.writer[Writer.__slots__.index("role")]

    def writer(self) -> Writer:
        return thaw(self.rules.writer, self.broker.writer)

    def owner(self) -> PointerOwner:
        assert self.broker.owner is not None
        return thaw(self.rules.owner, self.broker.owner)

    def steps(self) -> Iterator[Step]:
        yield from self.rest() if self.broker.action is None else self.perform()
        if self.broker.owner is not None:
            yield from self.keep()
        if self.role is not Role.IDLE and (world := self.world.spend(crashes=1)) is not None:
            life = self.broker.writer[Writer.__slots__.index("_nonce")] % 10 + 1
            yield "crashes", put(world, self.number, newborn(self.number, life, self.rules))

    # A broker with nothing to do

    def rest(self) -> Iterator[Step]:
        if self.role is Role.LEADER:
            yield from self.lead()
            return
        if self.number and all(
            broker == newborn(number, 0, self.rules)
            for number, broker in enumerate(self.world.brokers)
        ):
            # Brokers are alike, so the first one may as well begin.
            return
        if (world := self.world.spend(take_overs=1)) is not None:
            yield "takes over", self.go(world, self.writer(), Writer.take_over)
        if (world := self.world.spend(follows=1)) is not None:
            yield "follows", self.go(world, self.writer(), Writer.follow)

    def lead(self) -> Iterator[Step]:
        broker = self.broker
        if (world := self.world.spend(packs=1)) is not None:
            frame = self.writer().next_frame
            # A group is one pack or two.
            for whole in (True,) if broker.held else (True, False):
                turn = self.with_broker(world, broker._replace(whole=whole))
                what = f"appends frame {frame}{'' if whole else ', the first of a group'}"
                yield what, turn.go(turn.world, self.writer(), lambda w: w.append(frame, frame))
        if broker.owner is None or broker.owner_action is not None or broker.held:
            return
        if (world := self.world.spend(yields=1)) is not None:
            yield "yields", self.go(world, self.writer(), Writer.yield_shard)
        if (world := self.world.spend(checkpoints=1)) is not None:
            yield "writes a checkpoint's blocks", self.checkpoint(world)

    def checkpoint(self, world: World) -> World:
        writer, owner = self.writer(), self.owner()
        old = owner.pointer.manifest
        name = f"{writer.epoch}-{1 + sum(m.reader.epoch == writer.epoch for m in world.manifests)}"
        blocks = frozenset({name, f"{name}.rows", *([f"{old}.rows"] if old else [])})
        manifest = Manifest(name, writer.last, writer.reader, self.broker.frames, blocks)
        world = world._replace(
            blocks=world.blocks | {name, f"{name}.rows"},
            manifests=tuple(sorted({*world.manifests, manifest})),
        )
        return self.own(world, owner, lambda o: o.switch(name, writer.last, blocks))

    # A broker that does what its writer asked for

    def perform(self) -> Iterator[Step]:
        action, world = self.broker.action, self.world
        if isinstance(action, act.ReadPack):
            yield from self.read(action.sequence)
        elif isinstance(action, act.ReadPointer):
            what = f"reads the pointer: {world.pointer and tuple(world.pointer)}"
            yield what, self.go(world, self.writer(), lambda w: w.pointer_read(world.pointer))
        elif isinstance(action, act.InstallManifest):
            yield self.install(action.pointer.manifest)
        elif isinstance(action, act.AppendPack):
            alone = action.header.is_start or action.header.is_end
            entry = Entry(action.header, self.broker.whole or alone)
            message: Message = Publish(entry, action.expected_last)
            yield from self.send(message, self.writer, self.go, Writer.appended)
        else:
            message = WritePointer(action.expected_revision, action.value)
            yield from self.send(message, self.writer, self.go, Writer.pointer_claimed)

    def read(self, sequence: int) -> Iterator[Step]:
        world = self.world
        result: PackHeader | NoPack = MISSING
        if sequence <= world.trimmed:
            result = TRIMMED
        elif sequence <= len(world.stream):
            result = world.stream[sequence - 1].header
            if (stale := world.spend(faults=1)) is not None:
                after = self.go(stale, self.writer(), lambda w: w.read(MISSING))
                yield f"reads {sequence} from a replica that lags: nothing", after
        what = f"reads {sequence}: {result if isinstance(result, PackHeader) else result.value}"
        yield what, self.go(world, self.writer(), lambda w: w.read(result))

    def install(self, name: str) -> Step:
        writer, manifest = self.writer(), self.world.manifest(name)
        if not manifest.blocks <= self.world.blocks:
            return f"finds blocks of {name} gone", self.go(
                self.world, writer, lambda w: w.installed(None, 0)
            )
        turn = self
        if manifest.sequence > writer.last:
            turn = self.with_broker(
                self.world, self.broker._replace(frames=manifest.frames, held=())
            )
        next_frame = len(manifest.frames) + 1
        after = turn.go(turn.world, writer, lambda w: w.installed(manifest.reader, next_frame))
        return f"installs {name}", after

    def send(
        self,
        message: Message,
        machine: Callable[[], Any],
        go: Callable[[World, Any, Callable[[Any], Any]], World],
        accept: Callable[[Any, int], Any],
    ) -> Iterator[Step]:
        what = describe(message)
        world, result = self.world.arrive(message)
        answer = (lambda m: accept(m, result)) if result else (lambda m: m.refused())
        yield f"{what}: {result or 'refused'}", go(world, machine(), answer)
        faulty = self.world.spend(faults=1)
        if faulty is None:
            return
        arrived, result = faulty.arrive(message)
        if result:
            after = go(arrived, machine(), lambda m: m.unanswered())
            yield f"{what}: {result}, the answer is lost", after
        late = faulty.delay(message)
        if late.network != faulty.network:
            yield f"{what}: is late, no answer", go(late, machine(), lambda m: m.unanswered())
            yield f"{what}: is late, 'refused'", go(late, machine(), lambda m: m.refused())

    # The pointer's owner

    def keep(self) -> Iterator[Step]:
        broker, world = self.broker, self.world
        if isinstance(broker.owner_action, act.ClaimPointer):
            change = WritePointer(broker.owner_action.expected_revision, broker.owner_action.value)
            yield from self.send(change, self.owner, self.own, PointerOwner.changed)
        elif isinstance(broker.owner_action, act.ReadPointer):
            after = self.own(world, self.owner(), lambda o: o.pointer_read(world.pointer))
            yield "reads its pointer", after
        for message in broker.garbage:
            rest = tuple(other for other in broker.garbage if other != message)
            done = put(world, self.number, broker._replace(garbage=rest))
            yield describe(message), done.arrive(message)[0]
            if (late := done.spend(faults=1)) is not None:
                yield f"{describe(message)}: is late", late.delay(message)
        names = [(name, int(name.partition("-")[0])) for name in sorted(world.blocks)]
        if leftovers := self.owner().leftovers(names):
            sweep = Delete(frozenset(leftovers))
            yield f"sweeps: {describe(sweep)}", world.arrive(sweep)[0]

    # What follows from a step

    def with_broker(self, world: World, broker: Broker) -> Turn:
        return Turn(put(world, self.number, broker), self.number, self.rules)

    def own(self, world: World, owner: PointerOwner, call: Callable[[Any], Any]) -> World:
        action = call(owner)
        broker = world.brokers[self.number]._replace(owner=freeze(owner), owner_action=action)
        if isinstance(action, FreeSpace):
            broker = broker._replace(owner_action=None, garbage=(*broker.garbage, *space(action)))
        elif isinstance(action, act.LoseShard):
            broker = broker._replace(owner=None, owner_action=None, garbage=())
            writer = thaw(self.rules.writer, broker.writer)
            world = put(world, self.number, broker)
            return self.go(world, writer, lambda w: w.fence(action.by_epoch))
        return put(world, self.number, broker)

    def go(self, world: World, writer: Writer, call: Callable[[Any], Any]) -> World:
        """A call of the writer, and all that its broker does by itself then."""
        broker = world.brokers[self.number]
        action = call(writer)
        while isinstance(action, act.ApplyPack):
            entry = world.stream[writer.last]
            frames, held = apply(broker.frames, broker.held, entry, action.drop_from)
            broker = broker._replace(frames=frames, held=held)
            action = writer.applied(len(frames) + 1)
        if isinstance(action, act.ReportHole):
            raise Violation(f"{'abc'[self.number]} reports a hole at {action.sequence}")
        broker = broker._replace(writer=freeze(writer), action=action)
        if isinstance(action, act.Settle):
            world, broker = self.settle(world, broker, writer, action.sequence)
        elif isinstance(action, act.LoseShard):
            world, broker = self.lose(world, broker, writer, action)
        elif isinstance(action, act.Serve) and broker.owner is None:
            blocks = world.manifest(name).blocks if (name := writer.pointer.manifest) else ()
            owner = self.rules.owner(writer.pointer, blocks)
            broker = broker._replace(held=(), owner=freeze(owner))
        if isinstance(action, act.ENDS):
            broker = broker._replace(action=None)
        return put(world, self.number, broker)

    def settle(
        self, world: World, broker: Broker, writer: Writer, sequence: int
    ) -> tuple[World, Broker]:
        entry = Entry(world.stream[sequence - 1].header, broker.whole)
        before = len(broker.frames)
        frames, held = apply(broker.frames, broker.held, entry, None)
        if frames[before:]:
            news = Acknowledgement(sequence, writer.epoch, frames[before:])
            world = world._replace(acknowledged=world.acknowledged | {news})
        if entry.header.is_end:
            # It leads no more, and deletes nothing any more.
            broker = broker._replace(owner=None, garbage=())
        return world, broker._replace(frames=frames, held=held)

    def lose(
        self, world: World, broker: Broker, writer: Writer, action: act.LoseShard
    ) -> tuple[World, Broker]:
        if self.role is Role.LEADER and action.outcome != "unknown":
            # The callers of the pack in flight, and of the packs of a group that it did not finish.
            frames = set(broker.held)
            if action.outcome == "moved":
                reader = writer.reader
                frames.add(FrameId(reader.epoch, reader.nonce, writer.next_frame))
            world = world._replace(moved=world.moved | frames)
        return world, Broker(broker.writer)


def put(world: World, number: int, broker: Broker) -> World:
    brokers = world.brokers
    return world._replace(brokers=(*brokers[:number], broker, *brokers[number + 1 :]))


def describe(message: Message) -> str:
    if isinstance(message, Publish):
        header = message.entry.header
        kind = "LeaderStarted" if header.is_start else f"frame {header.first_frame}"
        kind = "LeaderYielded" if header.is_end else kind
        return f"publishes {kind} of epoch {header.epoch} to follow {message.expected_last}"
    if isinstance(message, WritePointer):
        value = message.value
        return (
            f"writes the pointer over revision {message.expected_revision}: "
            f"epoch {value.epoch}, manifest {value.manifest or 'none'}"
        )
    if isinstance(message, Trim):
        return f"trims the stream to {message.sequence}"
    return f"deletes {', '.join(sorted(message.blocks))}"
