"""Canonical tables, the readers that yield them, and the prepared store."""
