"""Calls with numbers: made again after a lost answer, they happen once and are answered alike."""
