"""Sinks as the broker serves them: staging, publishing, and carrying out what was published."""
