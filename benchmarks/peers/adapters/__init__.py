"""One file per peer: `Server` starts it, `connect` gives a `Client`.

Both sides of a benchmark import these files: the orchestrator for `Server`, client processes for
`connect`. So nothing outside the standard library is imported before it is needed.
"""
