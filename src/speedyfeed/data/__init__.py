"""Canonical tables, the users that yield them, and the prepared store."""
