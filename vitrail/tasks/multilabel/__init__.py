"""Any number of labels a picture."""
