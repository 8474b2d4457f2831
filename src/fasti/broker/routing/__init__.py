"""Bindings for those who call, and which rows of a produce go where."""
