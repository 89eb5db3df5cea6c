"""Timelines in, batches of news ids out, with the cache planned ahead."""
