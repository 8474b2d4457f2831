"""Handing messages out: who waits, whose turn it is, and the leases that are out."""
