"""Cron topics: schedules, which of their occurrences count, and what they emit."""
