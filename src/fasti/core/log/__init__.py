"""Logs: immutable rows by offset, in partitions, and the consumer groups that share them out."""
