"""Shows what a model sees: its filters, its positions, where its heads attend, and what its answer depends on."""
