"""Networks built from the layers."""
