"""How good a ranking is: metrics, intervals, search over all news, leaderboard files."""
