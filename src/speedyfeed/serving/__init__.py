"""Serving a trained run: recommendations over HTTP, articles added and removed at any time, and a web page."""
