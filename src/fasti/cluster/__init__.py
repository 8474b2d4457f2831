"""Shards on NATS JetStream: journals, blocks, members, leadership, standbys."""
