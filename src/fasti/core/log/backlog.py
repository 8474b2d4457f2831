"""What the groups of a log have to do: asked by the test kit, which waits until it is done."""

from __future__ import annotations

from fasti.core.log.body import log_of
from fasti.core.log.commands import GroupBacklog, ReadBacklog
from fasti.core.replies import Done
from fasti.core.work import Work


def read_backlog(work: Work, query: ReadBacklog) -> Done:
    """The value is a `GroupBacklog` of each group, by name."""
    topic = work.topic(query.topic)
    backlogs = {}
    for group in topic.body.groups.by_name.values():
        rows, retry_us = 0, None
        for partition in log_of(topic).partitions.made():
            place = group.partitions.look(partition.number)
            due_us, _ = place.again.pairs()
            later = due_us[due_us > work.now_us]
            unseen = partition.next_offset - place.next
            rows += unseen + place.leased + max(0, place.waiting - len(later))
            if len(later):
                first_us = int(later.min())
                retry_us = first_us if retry_us is None else min(retry_us, first_us)
        backlogs[group.name] = GroupBacklog(rows, retry_us)
    return Done(backlogs)
