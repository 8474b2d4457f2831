"""What the broker counts, how late it was, and the text that a scrape gets."""
