"""A broker with several shards: to the SDK a transport like any other, which sends each call where it
belongs and makes one answer of many.

`transport.py` has `ShardedTransport`, `table.py` says of every action where it goes and how its answers
are merged. Behind it is one transport for each shard: to a process over Flight (`shard_transport.py`,
`processes.py`, `shard_map.py`), or to a broker inside this process.
"""
