"""Evaluation: measures how good a model is. Each sample counts once."""
