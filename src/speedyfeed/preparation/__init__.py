"""Preparation of raw logs: read, number, refine, tokenize, join timelines, write a store."""
