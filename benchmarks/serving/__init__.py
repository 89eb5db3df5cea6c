"""Serving: latency of recommendations and speed of the search."""
