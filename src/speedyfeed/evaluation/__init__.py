"""Ranking metrics, confidence intervals, recall over all articles, and leaderboard files."""
