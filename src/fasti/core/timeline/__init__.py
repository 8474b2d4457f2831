"""Timelines: messages by their due time. What is decided about messages, whatever the kind."""
