"""Models in pure torch: no files, no data."""
