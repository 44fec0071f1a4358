"""Independent attacks against our own certificates."""
