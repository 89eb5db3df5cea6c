"""Robustness: runs in which a rank is killed."""
