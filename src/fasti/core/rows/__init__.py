"""Where messages live in memory: frames, pages, names, and what is left of those that are gone."""
