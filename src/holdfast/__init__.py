"""Image classifiers with a guarantee in l2."""
