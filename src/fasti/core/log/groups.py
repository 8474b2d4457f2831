"""The consumer groups of logs: who decides what is asked of them, and how their events are made so.

The rows are `topic.body.partitions` (partition.py); what a topic's groups keep is
`topic.body.groups` (group.py). Commands are decided in leasing.py, group_commands.py and turns.py;
events are made so here, while they are decided and in replay.

A group's leases stand in the shard's one lease table: `sequence` is the offset plus one, as in ids,
and `partition` the group's number and the partition (`Group.place`).

The sequencer's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import commands as co
from fasti.core.columns.reductions import lowest
from fasti.core.delivery.verbs import VERBS
from fasti.core.events import Event
from fasti.core.kind import Apply, Columns, Handler
from fasti.core.lifecycle import Verb
from fasti.core.log import commands as lo
from fasti.core.log import group_capsule, group_commands, leasing
from fasti.core.log import group_events as ge
from fasti.core.log.body import log_of
from fasti.core.log.group import GROUP_SHIFT, PLACE_BYTES, Group, GroupPartition
from fasti.core.log.turns import LogTurns
from fasti.core.log.window import ACKED
from fasti.core.timeline.corrupt import GiveUp
from fasti.model import PARTITIONS_MAX

if TYPE_CHECKING:
    from fasti.core.state import ShardState, Topic

Int64s = NDArray[np.int64]


class LogGroups:
    """Consumer groups of all logs of an engine."""

    def __init__(self, state: ShardState, turns: LogTurns) -> None:
        self.state, self.memory, self.turns = state, state.memory, turns

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on groups."""
        return {
            co.Lease: self.turns.lease,
            co.Unheard: self.turns.unheard,
            co.Heard: self.turns.heard,
            **VERBS,
            co.Redrive: group_commands.redrive,
            co.Purge: group_commands.purge,
            GiveUp: leasing.give_up,
            lo.CreateGroup: group_commands.create_group,
            lo.DeleteGroup: group_commands.delete_group,
            lo.ResetGroup: group_commands.reset_group,
            lo.DescribeGroups: group_commands.describe_groups,
            lo.ListDead: group_commands.list_dead,
        }

    def events(self) -> dict[type[Event], Apply]:
        """Events of groups."""
        return {
            ge.GroupMade: self._made,
            ge.GroupDropped: self._dropped,
            ge.GroupLeased: self._leased,
            ge.GroupResumed: self._resumed,
            ge.GroupExtended: self._extended,
            ge.GroupRenewed: self._renewed,
            ge.GroupAcked: self._acked,
            ge.GroupReturned: self._returned,
            ge.GroupDied: self._died,
            ge.GroupSet: self._set,
            ge.GroupRevived: self._revived,
            ge.GroupPurged: self._purged,
        }

    def trimmed(self, topic: Topic, partition: int, first_offset: int) -> None:
        """A partition begins at this offset now."""
        for group in log_of(topic).groups.by_number.values():
            if group.partitions.get(partition) is None and group.offset(partition) >= first_offset:
                continue
            place = group.partitions[partition]
            if place.committed >= first_offset and not place.strays and not place.dead.count:
                continue
            self._end_leases(place.trim(first_offset, self.memory.reasons))
            self._changed(group, place)
            if place.behind:
                group.is_behind = True
                self.turns.look(topic, group, partition)

    # Making it so

    def _find(self, event: Any) -> tuple[Topic, Group, GroupPartition]:
        topic = self.state.topics[event.topic]
        group = log_of(topic).groups.by_number[event.group]
        place = group.partitions[event.partition]
        if self.memory.undo.active:
            # Noted first, done last: when all else of the event is taken back.
            self.memory.undo.note(lambda: self._changed(group, place))
        return topic, group, place

    def _made(self, event: ge.GroupMade, _: int) -> None:
        topic = self.state.topics[event.topic]
        ordered = bool(event.ordered)
        group = Group(event.group, event.number, ordered, event.offsets, self._note_places)
        log_of(topic).groups.add(group)
        self.memory.groups_bytes += group.size_bytes

    def _dropped(self, event: ge.GroupDropped, _: int) -> None:
        topic = self.state.topics[event.topic]
        group = log_of(topic).groups.remove(event.number)
        leases = self.memory.leases
        live = leases.live()
        mine = leases.topic[live] == event.topic
        mine &= leases.partition[live] >> GROUP_SHIFT == event.number
        self._end_leases(live[mine])
        self._forget(group)

    def _leased(self, event: ge.GroupLeased, _: int) -> None:
        topic, group, place = self._find(event)
        leases, consumers = self.memory.leases, self.memory.consumers
        consumer = consumers.number(event.consumer)
        consumers.use(consumer, len(event.offset))
        number = group.place(event.partition)
        held = leases.open(
            event.offset + 1, event.topic, number, consumer, event.token, event.length_us
        )
        tick = self.state.tick
        leases.arm(held, tick + event.length_us, tick + topic.settings.hold_us)
        place.hand_out(event.offset, held)
        self._changed(group, place)

    def _resumed(self, event: ge.GroupResumed, _: int) -> None:
        place = self._find(event)[2]
        held = _held(place, event.offset)
        self.memory.leases.resume(held, event.token, self.state.tick)

    def _extended(self, event: ge.GroupExtended, _: int) -> None:
        place = self._find(event)[2]
        held, undo = _held(place, event.offset), self.memory.undo
        self.memory.leases.extend(held, event.length_us, self.state.tick, undo)

    def _renewed(self, event: ge.GroupRenewed, _: int) -> None:
        group = log_of(self.state.topics[event.topic]).groups.by_number[event.group]
        held = leasing.held_in_group(self.memory, event.topic, group, event.consumer)
        self.memory.leases.renew(held, self.state.tick)

    def _acked(self, event: ge.GroupAcked, _: int) -> None:
        topic, group, place = self._find(event)
        self._close_leases(place, event.offset)
        place.finish(event.offset, ACKED, self.memory.undo)
        self._changed(group, place)
        self.turns.finished(topic, group, event.partition)

    def _returned(self, event: ge.GroupReturned, _: int) -> None:
        topic, group, place = self._find(event)
        self._close_leases(place, event.offset)
        uncount = event.verb == Verb.RELEASE
        place.give_back(event.offset, event.due_us, uncount, self.memory.undo)
        self._changed(group, place)
        self.turns.returned(topic, group, event.partition, lowest(event.due_us))

    def _died(self, event: ge.GroupDied, _: int) -> None:
        topic, group, place = self._find(event)
        self._close_leases(place, event.offset)
        reasons = self.memory.reasons
        reason = reasons.number(event.reason)
        place.bury(event.offset, reason, event.at_us, reasons, self.memory.undo)
        self._changed(group, place)
        self.turns.finished(topic, group, event.partition)

    def _set(self, event: ge.GroupSet, _: int) -> None:
        topic, group, place = self._find(event)
        self._end_leases(place.reset(event.offset, self.memory.reasons))
        self._changed(group, place)
        group.is_behind = any(each.behind for each in group.partitions.made())
        self.turns.look(topic, group, event.partition)

    def _revived(self, event: ge.GroupRevived, _: int) -> None:
        topic, group, place = self._find(event)
        place.unbury(event.offset, self.memory.reasons, self.memory.undo)
        place.revive(event.offset, event.due_us)
        self._changed(group, place)
        self.turns.returned(topic, group, event.partition, lowest(event.due_us))

    def _purged(self, event: ge.GroupPurged, _: int) -> None:
        group, place = self._find(event)[1:]
        place.unbury(event.offset, self.memory.reasons, self.memory.undo)
        self._changed(group, place)

    def _close_leases(self, place: GroupPartition, offsets: Int64s) -> None:
        self.memory.close_leases(_held(place, offsets), offsets + 1)

    def _end_leases(self, held: Int64s) -> None:
        if len(held):
            self.memory.consumers.unuse_all(self.memory.leases.consumer[held])
            self.memory.leases.close(held)

    def _changed(self, group: Group, place: GroupPartition) -> None:
        """Counts what the place takes, and what it adds to the group's sums, anew."""
        group.count(place)
        size_bytes = place.size_bytes
        self.memory.groups_bytes += size_bytes - place.counted_bytes
        place.counted_bytes = size_bytes

    def _note_places(self, count: int) -> None:
        self.memory.groups_bytes += count * PLACE_BYTES

    def _forget(self, group: Group) -> None:
        for place in group.partitions.made():
            place.forget_dead(self.memory.reasons)
            self.memory.groups_bytes -= place.counted_bytes
        group.partitions.clear()
        self.memory.groups_bytes -= group.size_bytes

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted; its leases go with all others of the topic."""
        for group in log_of(topic).groups.by_number.values():
            self._forget(group)

    def restore_leases(self, topic: Topic, place: int, sequences: Int64s, held: Int64s) -> None:
        """Leases that a checkpoint kept have these slots now."""
        group = log_of(topic).groups.by_number[place >> GROUP_SHIFT]
        mine = group.partitions[place & (PARTITIONS_MAX - 1)]
        mine.lease[mine.slots(sequences - 1)] = held

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from a checkpoint."""
        captured = group_capsule.restore(topic.number, described, columns, self._note_places)
        for group in captured:
            log_of(topic).groups.add(group)
            self.memory.groups_bytes += group.size_bytes
            for place in group.partitions.made():
                place.count_reasons(self.memory.reasons)
                self._changed(group, place)


def _held(place: GroupPartition, offsets: Int64s) -> Int64s:
    """The lease table's slots of leased rows."""
    return place.lease[place.slots(offsets)].astype(np.int64)
