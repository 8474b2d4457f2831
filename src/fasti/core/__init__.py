"""The pure engine: a state machine over metadata, with no clock, I/O, thread or randomness."""
