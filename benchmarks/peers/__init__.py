"""Fasti beside what people use today: the same scenarios, one adapter per peer."""
