"""Work on whole columns: hashing, looking up, sorting, reducing. Nothing here knows a message."""
