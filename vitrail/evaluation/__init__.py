"""How good a model is: numbers over samples that are each counted once."""
