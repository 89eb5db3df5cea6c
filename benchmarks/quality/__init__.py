"""Quality: how well trained variants rank and recall, over seeds."""
