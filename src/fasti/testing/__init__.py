"""The test kit: what Fasti is tested with, and what its users may test with."""
