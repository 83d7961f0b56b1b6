"""What a model sees: its filters, its positions, where its heads look, and what its answer rests on."""
