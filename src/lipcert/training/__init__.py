"""Training on real data: configuration, loop, checkpoints."""
