"""Key-value topics: the latest value of each key."""
