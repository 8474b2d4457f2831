"""Offline tools of a data directory: inspect, verify, scrub, back up, restore, repair, set the clock back."""
