"""Batches to a trained model: losses, workflows, checkpoints, the loop."""
