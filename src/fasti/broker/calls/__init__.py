"""The protocol's calls in terms of commands: actions, intakes, subscriptions, listings."""
