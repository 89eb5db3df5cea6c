"""Tokens to news embeddings, clicks to user embeddings."""
