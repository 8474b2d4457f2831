"""Key-value topics for those who call: actions, reads, scans in order, watching, metrics."""
