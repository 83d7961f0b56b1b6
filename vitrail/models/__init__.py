"""What a model is: pure torch, no files, no data."""
