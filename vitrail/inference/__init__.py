"""Running a finished model: labels, features, other engines, and how to make it faster."""
