"""Benchmarks: each module measures one claim and returns the figures."""
