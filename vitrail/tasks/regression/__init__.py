"""Regression: one or several named numbers for each picture."""
