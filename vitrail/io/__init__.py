"""Reading and writing files safely: atomic files and folders, checksums, JSON, progress bars. Does not import torch."""
