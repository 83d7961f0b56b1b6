"""Multi-label classification: any number of labels for each picture."""
