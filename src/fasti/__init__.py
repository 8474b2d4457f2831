"""Fasti: a persistent, time-ordered message queue."""
