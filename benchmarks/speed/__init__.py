"""Speed: what a click, a step, a token and a prepared row cost."""
