"""What is learned: each objective turns a model and a batch into losses, and nothing else differs."""
