"""One class a picture."""
