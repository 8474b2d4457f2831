"""Logs for those who call: actions, reads, following, metrics."""
