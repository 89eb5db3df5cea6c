"""Raw logs in, a memory-mapped store out."""
