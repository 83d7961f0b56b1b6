"""HTML pages and matplotlib figures, the building blocks of every report. Does not import torch."""
