"""The `fasti` command: one file per command group."""
