"""The HTTP server: images in, predictions, features and attention out; and a page to try it."""
