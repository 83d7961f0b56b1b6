"""Sweeps of trainings: each a list of rows and seeds, resumable, with a table, a picture and a conclusion."""
