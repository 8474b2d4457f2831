"""Calls that may have a number, so that they happen once, however often they are made.

Of the other actions those that change something may be made twice without harm, or are about nothing that
outlives the broker, but for `reply`: each of its answers stands for itself.
"""

from __future__ import annotations

# The field of a header that has it.
ONCE = "once"
CLIENT_CHARS_MAX = 64
NUMBERED = frozenset(
    (
        *("update", "move", "cancel", "cancel_where", "move_where"),
        *("ack", "nack", "reject", "release", "extend", "release_leases"),
        *("redrive", "purge", "redrive_dead", "purge_dead", "transaction"),
        *("kv_put", "kv_delete", "publish", "drop_stage", "forget_sink"),
        *("put_schedules", "pause_schedule", "run_schedule", "delete_schedule"),
        *("create_group", "reset_group", "delete_group", "truncate"),
        *("change_topic", "delete_topic", "pause_topic", "resume_topic"),
        *("bind", "unbind"),
    )
)
