"""Storage in memory, for tests and for brokers that keep nothing."""
