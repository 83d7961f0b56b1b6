"""Runs the paper's studies: lists of trainings that can be resumed, with a table, a picture and a conclusion."""
