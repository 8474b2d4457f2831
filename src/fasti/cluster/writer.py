"""How one broker appends to one shard's journal stream: leadership as a machine without I/O.

NATS keeps the truth, and this machine never guesses at it. The rules:

- One pack is in flight. It has one place where it can be: after the last one that this broker has read.
  So it is published with `expected last sequence`, and a copy that comes late is refused for ever.
- A refusal or silence says nothing. Only reading the place resolves it. This broker's pack is there:
  ok. Nothing is there: the same append again. Another broker's pack is there: this one did not happen.
- A candidate that meets another's pack applies it and starts again; one that meets another's
  `LeaderStarted` in the place of its own stands down, since a living leader is never deposed.
- A leader that meets a higher epoch has lost the shard. One that meets a void pack (`pack_reader.py`)
  steps over it and appends again behind it; see `_meet`.
- `LeaderStarted` is appended by one who has applied all before it, so epochs in the stream only rise,
  and one epoch has one leader.
- A leader serves when the pointer is its own.
- One that yields appends `LeaderYielded` behind all that it decided. When that is settled it is a standby.

Roles: idle (knows nothing), standby (follows), candidate (takes over), leader, fenced (has lost the
shard: its engine is dropped, and `follow` begins anew).

**To drive it** from code that blocks: call `follow`, `take_over`, `append`, `yield_shard` or `resolve`, then do what
the action says and bring the result, until the action is one of `ENDS`:

    action = writer.take_over()
    while not isinstance(action, ENDS):
        try:
            match action:
                case ReadPack(sequence):          # from the stream's leader, not from a near replica
                    pack = stream.get(sequence)   # or MISSING, or TRIMMED if the stream begins later
                    action = writer.read(pack if pack in (MISSING, TRIMMED) else pack.header)
                case ApplyPack(header, drop_from):  # the pack that was just read
                    engine.drop(drop_from); engine.apply(pack)
                    action = writer.applied(engine.next_frame)
                case AppendPack(header, expected_last):
                    # The same frames under this header; only its place and chain may be new.
                    action = writer.appended(stream.publish(encode(header, ...), expected_last))
                case ReadPointer():
                    action = writer.pointer_read(pointer.get())           # None if there is none
                case InstallManifest(pointer):
                    reader = engine.install(pointer)  # None if a block is gone: the pointer has moved on
                    action = writer.installed(reader, engine.next_frame)
                case ClaimPointer(expected_revision, value):
                    action = writer.pointer_claimed(pointer.put(value, expected_revision))
        except Refused:     # wrong last sequence, wrong last revision
            action = writer.refused()
        except TimeoutError:
            action = writer.unanswered()

Then: `Serve` (leads, nothing is in flight; frames of an unfinished group, which the engine may still
hold back, are void by its own start), `CaughtUp` (standby: call `follow` again when more comes),
`Settle` (the pack's outcome, for its callers; the leader goes on), `StandDown` (was beaten, follows
on), `LoseShard` (tell the callers the outcome: `moved` means that nothing was done, `unknown` that the
place was trimmed before it was read; drop the engine), `ReportHole` (find the missing pack in other
replicas and caches, then call `follow` or `resolve`; or stop the shard).

One thread at a time. All its fields are immutable values, so that `copy.copy` is a snapshot.
"""

from __future__ import annotations

from typing import Literal

from fasti.cluster.pack_reader import PackHeader, PackReader, PackVerdict
from fasti.cluster.writer_actions import (
    ENDS,
    MISSING,
    TRIMMED,
    Action,
    AppendPack,
    ApplyPack,
    Ask,
    CaughtUp,
    ClaimPointer,
    InstallManifest,
    LoseShard,
    NoPack,
    PointerHeader,
    ReadPack,
    ReadPointer,
    ReportHole,
    Role,
    Serve,
    Settle,
    StandDown,
)

__all__ = [
    "ENDS", "MISSING", "TRIMMED", "NoPack", "Role", "Writer",
    "PackHeader", "PackReader", "PackVerdict", "PointerHeader",
    "Action", "AppendPack", "ApplyPack", "CaughtUp", "ClaimPointer", "InstallManifest", "LoseShard",
    "ReadPack", "ReadPointer", "ReportHole", "Serve", "Settle", "StandDown",
]  # fmt: skip


class Writer:
    """One broker's part in one shard. `broker` and `nonce` are those of its process."""

    __slots__ = (
        "_asked", "_beaten_by", "_broker", "_epoch", "_in_flight", "_installed", "_nonce", "_started",
        "last", "next_frame", "pointer", "reader", "role",
    )  # fmt: skip

    def __init__(self, broker: str, nonce: int) -> None:
        if nonce < 1:
            raise ValueError("a nonce must be at least 1")
        self._broker, self._nonce = broker, nonce
        self.role = Role.IDLE
        self._forget()

    def _forget(self) -> None:
        # The stream's sequence up to which all is applied.
        self.last = 0
        # How far this broker has read: what a manifest keeps for those who begin with it.
        self.reader = PackReader()
        # The frame that a leader writes next.
        self.next_frame = 1
        # The manifest that was installed; None: nothing was, so all begins with the pointer.
        self._installed: str | None = None
        # The pointer as this broker knows it: its own once it serves.
        self.pointer = PointerHeader(0, 0, "", "", 0)
        # The epoch of this broker's own `LeaderStarted`, from its first append on.
        self._epoch = 0
        # Whether that is in the stream, and applied.
        self._started = False
        self._in_flight: PackHeader | None = None
        # The epoch of another's `LeaderStarted` that was in the place of this candidate's.
        self._beaten_by = 0
        # What the caller is doing; None: nothing.
        self._asked: Ask | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch seen in the stream."""
        return self.reader.epoch

    # Calls

    def follow(self) -> Action:
        """As a standby: apply what there is. Ends a candidacy; a leader yields first.

        After a fence all begins from nothing, since the engine was dropped.
        """
        if self.role is Role.LEADER:
            raise RuntimeError("a leader yields before it follows")
        self._begin(Role.STANDBY)
        return self._next_place()

    def take_over(self) -> Action:
        """Stand as candidate, from any role but leader."""
        if self.role is Role.LEADER:
            raise RuntimeError("a leader doesn't take over")
        self._begin(Role.CANDIDATE)
        return self._next_place()

    def append(self, first_frame: int, last_frame: int) -> Action:
        """Append frames as the leader, or none (`last_frame` before the first) to prove that it leads."""
        self._check_rest(Role.LEADER)
        if (
            not self.next_frame - 1 <= first_frame <= self.next_frame
            or last_frame < first_frame - 1
        ):
            raise ValueError(
                f"frames {first_frame} to {last_frame} don't follow {self.next_frame - 1}"
            )
        header = PackHeader(self._epoch, self._broker, self._nonce, first_frame, last_frame)
        return self._publish(header)

    def yield_shard(self) -> Action:
        """Append `LeaderYielded` as the leader; `Settle` says that it leads no more, and may `follow`."""
        self._check_rest(Role.LEADER)
        first = self.next_frame
        return self._publish(
            PackHeader(self._epoch, self._broker, self._nonce, first, first - 1, is_end=True)
        )

    def resolve(self) -> Action:
        """As the leader: see whether it still leads. Also after a repaired hole or a stall."""
        if self.role is not Role.LEADER:
            raise RuntimeError(f"a broker that is {self.role.value} has nothing to resolve")
        return self._say(ReadPack(self.last + 1))

    def fence(self, by_epoch: int) -> Action:
        """As the leader: the pointer has a higher epoch. A pack in flight is read for first."""
        if self.role is not Role.LEADER or by_epoch <= self._epoch:
            raise RuntimeError(
                f"epoch {by_epoch} doesn't fence a {self.role.value} of {self._epoch}"
            )
        return self.resolve() if self._in_flight is not None else self._lose(by_epoch)

    def _begin(self, role: Role) -> None:
        if self.role is Role.FENCED:
            self._forget()
        # What an abandoned candidacy left in flight may still arrive. It is then read as any other pack.
        self._in_flight, self._beaten_by, self._asked = None, 0, None
        self._epoch, self._started, self.role = 0, False, role

    # Results of reads

    def read(self, result: PackHeader | NoPack) -> Action:
        """What is at the place that `ReadPack` named."""
        self._check_asked(ReadPack)
        if result is NoPack.MISSING:
            return self._meet_nothing()
        if result is NoPack.TRIMMED:
            return self._meet_trimmed()
        assert isinstance(result, PackHeader)
        return self._meet(result)

    def _meet(self, header: PackHeader) -> Action:
        mine = self._in_flight
        if mine is not None and header.has_writer_of(mine):
            assert header == mine, "two packs of one leadership for one place"
            return self._settle()
        verdict, _ = self.reader.take(header)
        if verdict.what == "hole" and not self._started:
            return self._say(ReportHole(self.last + 1))
        if self._started and header.epoch > self._epoch:
            # All of the new leader's packs stand behind its start, so this is its start.
            return self._lose(header.epoch)
        if verdict.what == "void":
            # It can be nobody's but a writer's that broke the rules: of a lower epoch, or of an equal one
            # by another's nonce. It is void for every reader, yet it took the place. To stop here would
            # help nobody: the next leader would meet the same. The pack in flight can't be stored any
            # more where it was sent to, so it can go to the next place without being there twice.
            self.last += 1
            return self._publish(mine) if self._started and mine else self._next_place()
        assert not self._started, "a pack of this leadership that this broker did not write"
        if mine is not None:
            self._in_flight = None
            if header.is_start:
                self._beaten_by = header.epoch
        return self._say(ApplyPack(header, verdict.drop_from))

    def _meet_nothing(self) -> Action:
        if self._in_flight is not None:
            return self._publish(self._in_flight)
        if self.role is Role.LEADER:
            return self._say(Serve(self._epoch))
        if self.role is Role.STANDBY:
            return self._say(CaughtUp(self.last))
        self._epoch = self.reader.epoch + 1
        first = self.next_frame
        return self._publish(
            PackHeader(self._epoch, self._broker, self._nonce, first, first - 1, True)
        )

    def _meet_trimmed(self) -> Action:
        """Only an owner of the pointer trims, so a newer leader has been here while this one slept."""
        if self._started:
            # This broker's pack may have been at that place before: nobody can know any more.
            return self._lose(0, "unknown")
        self._in_flight = None
        return self._say(ReadPointer())

    def applied(self, next_frame: int) -> Action:
        """The pack was applied. `next_frame` follows the last finished group, for a leader to write."""
        asked = self._check_asked(ApplyPack)
        assert isinstance(asked, ApplyPack)
        _, self.reader = self.reader.take(asked.header)
        self.last += 1
        self.next_frame = next_frame
        if self._beaten_by:
            self.role = Role.STANDBY
            epoch, self._beaten_by = self._beaten_by, 0
            return self._say(StandDown(epoch))
        return self._next_place()

    # Results of appends

    def appended(self, sequence: int) -> Action:
        """The pack is stored at that place. A place that is not the expected one is a lost answer's."""
        self._check_asked(AppendPack)
        if sequence != self.last + 1:
            return self._say(ReadPack(self.last + 1))
        return self._settle()

    def refused(self) -> Action:
        """The append or the claim was not taken, it says."""
        return self._doubt(AppendPack, ClaimPointer)

    def unanswered(self) -> Action:
        """No answer in time, to whatever the caller was doing."""
        return self._doubt(AppendPack, ClaimPointer, ReadPack, ReadPointer)

    def _doubt(self, *kinds: type[Ask]) -> Action:
        asked = self._check_asked(*kinds)
        if isinstance(asked, AppendPack):
            return self._say(ReadPack(self.last + 1))
        return self._say(ReadPointer()) if isinstance(asked, ClaimPointer) else asked

    def _settle(self) -> Action:
        mine, self._in_flight = self._in_flight, None
        assert mine is not None
        self.last += 1
        verdict, self.reader = self.reader.take(mine)
        assert verdict.what == "counts"
        if not mine.is_start:
            self.next_frame = mine.last_frame + 1
            if mine.is_end:
                self.role, self._epoch, self._started = Role.STANDBY, 0, False
            return self._say(Settle(self.last))
        self._started = True
        return self._say(ReadPointer())

    # The pointer

    def pointer_read(self, pointer: PointerHeader | None) -> Action:
        """The pointer's newest value."""
        self._check_asked(ReadPointer)
        self.pointer = pointer or PointerHeader(0, 0, "", "", 0)
        return self._weigh_pointer()

    def _weigh_pointer(self) -> Action:
        if self._started and self.pointer.epoch > self._epoch:
            return self._lose(self.pointer.epoch)
        if self.pointer.manifest != (self._installed or ""):
            return self._say(InstallManifest(self.pointer))
        self._installed = self.pointer.manifest
        if not self._started:
            return self._say(ReadPack(self.last + 1))
        if self.pointer.epoch == self._epoch:
            # An epoch has one leader: it is a claim of this broker whose answer was lost.
            self.role = Role.LEADER
            return self._say(Serve(self._epoch))
        value = self.pointer._replace(revision=0, epoch=self._epoch, broker=self._broker)
        return self._say(ClaimPointer(self.pointer.revision, value))

    def installed(self, reader: PackReader | None, next_frame: int) -> Action:
        """The manifest is in force here; `reader` is what it keeps. None: its blocks are gone."""
        self._check_asked(InstallManifest)
        if reader is None:
            return self._say(ReadPointer())
        self._installed = self.pointer.manifest
        if self.pointer.sequence > self.last:
            self.last, self.reader, self.next_frame = self.pointer.sequence, reader, next_frame
        # The pointer may have moved on meanwhile. A claim with its old revision will tell.
        return self._weigh_pointer()

    def pointer_claimed(self, revision: int) -> Action:
        """The pointer was written, at this revision."""
        claim = self._check_asked(ClaimPointer)
        assert isinstance(claim, ClaimPointer)
        self.pointer = claim.value._replace(revision=revision)
        self.role = Role.LEADER
        return self._say(Serve(self._epoch))

    # What comes next

    def _lose(self, by_epoch: int, doubt: Literal["moved", "unknown"] = "moved") -> Action:
        outcome = None if self._in_flight is None else doubt
        self.role, self._in_flight = Role.FENCED, None
        return self._say(LoseShard(by_epoch, outcome))

    def _next_place(self) -> Action:
        if self._installed is None:
            return self._say(ReadPointer())
        return self._say(ReadPack(self.last + 1))

    def _publish(self, header: PackHeader) -> Action:
        self._in_flight = header
        return self._say(AppendPack(header, self.last))

    def _say(self, action: Action) -> Action:
        self._asked = None if isinstance(action, ENDS) else action
        return action

    def _check_asked(self, *kinds: type[Ask]) -> Ask:
        if self._asked is None or not isinstance(self._asked, kinds):
            raise RuntimeError(f"this is no result of {self._asked!r}")
        return self._asked

    def _check_rest(self, role: Role) -> None:
        if self.role is not role or self._asked is not None or self._in_flight is not None:
            raise RuntimeError(f"one pack at a time, by a {role.value}")
