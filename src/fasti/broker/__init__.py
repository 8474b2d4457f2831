"""The threads around the engine."""
