"""Benchmarks: each figure beside the machine's own limit, measured in the same run."""
