"""Raw logs to a store: read, number, refine, tokenize, join timelines, write."""
