"""Schedules: when they happen, the thread that has them fired, and their actions."""
