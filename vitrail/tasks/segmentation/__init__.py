"""Segmentation: the class of each pixel."""
