"""News of a batch to embeddings: each distinct one encoded once, or read from the cache."""
