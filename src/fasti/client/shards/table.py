"""Of every action: where it goes when a broker has several shards, and how its answers become one.

A test compares this table with the broker's actions: none is missing.
"""

from __future__ import annotations

from fasti.client.shards import cuts, merges, process_merges, schedules, transactions
from fasti.client.shards.routing import Route

# To the catalogue, which answers when it holds everywhere.
_CATALOGUE = Route(cuts.catalogue, merges.only)
_CHANGES_TOPIC = Route(cuts.catalogue, merges.only, changes_topic=True)
# Each row to its shard; outcomes in the order of the rows.
_ROWS = Route(cuts.rows, merges.outcomes)
_FETCH = Route(cuts.rows, merges.tables_by_rows)
# Messages by filter or by id, bit by bit on all shards of the topic.
_WALK = Route(cuts.cursors, merges.walked)
# About one schedule, wherever it is.
_SCHEDULE = Route(schedules.found, merges.only)
# About one shard, whose caller names it.
_NAMED = Route(cuts.named_shard, merges.only)

TABLE: dict[str, Route] = {
    # The broker
    "hello": _CATALOGUE,
    "clock": Route(process_merges.one_per_process, process_merges.clock),
    "accept_clock": Route(process_merges.one_per_process, process_merges.accepted_clock),
    "health": Route(process_merges.asked_for_health, process_merges.health),
    "metrics": Route(process_merges.one_per_process, process_merges.metrics),
    "cluster": Route(cuts.catalogue, merges.only, any_process=True),
    "drain": Route(cuts.catalogue, merges.only, any_process=True),
    "checkpoint": Route(cuts.every_shard, merges.nothing),
    "scrub": Route(cuts.every_shard, merges.scrubs),
    "scrub_status": Route(cuts.every_shard, merges.scrubs),
    # Topics
    "create_topic": _CHANGES_TOPIC,
    "change_topic": _CHANGES_TOPIC,
    "delete_topic": Route(cuts.catalogue_or_own, merges.where_it_is, changes_topic=True),
    "pause_topic": _CATALOGUE,
    "resume_topic": _CATALOGUE,
    "bind": _CATALOGUE,
    "unbind": _CATALOGUE,
    "bindings": _CATALOGUE,
    "topic": Route(cuts.shards_of_topic, merges.topic),
    "topics": Route(cuts.every_shard, merges.topics),
    "references": Route(cuts.every_shard, merges.references),
    "consumers": Route(cuts.topic_or_every, merges.consumers),
    # Messages
    "get": _FETCH,
    "update": _ROWS,
    "move": _ROWS,
    "cancel": _ROWS,
    "count": Route(cuts.shards_of_topic, merges.counted),
    "forecast": Route(cuts.shards_of_topic, merges.forecast),
    "cancel_where": _WALK,
    "move_where": _WALK,
    # Leases
    "ack": _ROWS,
    "nack": _ROWS,
    "reject": _ROWS,
    "release": _ROWS,
    "extend": _ROWS,
    "release_leases": Route(cuts.rows_or_topic, merges.appended_outcomes),
    "reply": Route(cuts.with_request, merges.outcomes),
    # Dead letters
    "redrive": _ROWS,
    "purge": _ROWS,
    "redrive_dead": Route(cuts.redriven, merges.walked),
    "purge_dead": Route(cuts.redriven, merges.walked),
    "count_dead": Route(cuts.shards_of_topic, merges.dead_counts),
    "dead": Route(cuts.shards_of_topic, merges.dead_page),
    # Several at once
    "transaction": Route(transactions.transaction, merges.only),
    # Staged messages: on each shard by itself, not one moment over all
    "publish": Route(cuts.every_shard, merges.published),
    "drop_stage": Route(cuts.every_shard, merges.published),
    # Snapshots: one handle over all shards; exact on each, not one moment over all
    "take_snapshot": Route(cuts.every_shard, merges.snapshot),
    "drop_snapshot": Route(cuts.held_snapshots, merges.nothing),
    # Logs and groups
    "log": Route(cuts.shards_of_topic, merges.log),
    "offsets": Route(cuts.partitions, merges.offsets),
    "truncate": Route(cuts.partitions, merges.truncated),
    "groups": Route(cuts.shards_of_topic, merges.groups),
    "create_group": Route(cuts.all_partitions, merges.group("already_exists")),
    "reset_group": Route(cuts.partitions, merges.group("-")),
    "delete_group": Route(cuts.shards_of_topic, merges.done_somewhere("not_found")),
    # Key-value topics
    "kv_put": _ROWS,
    "kv_delete": _ROWS,
    "kv_get": _FETCH,
    "kv_describe": Route(
        cuts.shards_of_topic, merges.sums_with_positions("entries", "expiring", "removed")
    ),
    # Schedules
    "put_schedules": Route(schedules.put, schedules.put_outcomes),
    "schedules": Route(schedules.listed, schedules.merged),
    "preview": _SCHEDULE,
    "pause_schedule": _SCHEDULE,
    "run_schedule": _SCHEDULE,
    "delete_schedule": _SCHEDULE,
    # The change feed, sinks and backups: of one shard each, as their callers in the SDK are
    "feed": _NAMED,
    "publish_batch": _NAMED,
    "drop_stages": _NAMED,
    "sinks": _NAMED,
    "forget_sink": _NAMED,
    "begin_backup": _NAMED,
    "end_backup": _NAMED,
    # Between the shards themselves
    "read_catalogue": _NAMED,
    "follow_catalogue": _NAMED,
    "idle_topics": _NAMED,
}
