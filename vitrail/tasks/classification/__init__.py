"""Classification: one class for each picture."""
