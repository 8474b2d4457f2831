"""Priority topics: what is due, the most urgent first."""
