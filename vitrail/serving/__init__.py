"""A model behind HTTP: images in, classes, features and attention out; and a page to look at them."""
