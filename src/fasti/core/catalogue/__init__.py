"""What topics there are, on several shards: shard 0's journal is the truth, and the others follow."""
