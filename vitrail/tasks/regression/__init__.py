"""One or several named numbers a picture."""
