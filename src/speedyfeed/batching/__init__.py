"""Batches of article ids from click timelines, with cache hits planned ahead."""
