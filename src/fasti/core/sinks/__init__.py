"""Batches of rows that happen once: stages of sinks, their publication, and what is remembered."""
