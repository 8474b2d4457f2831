"""The time index: what is due when, what is ready, and what has to be read back."""
