"""Layers: state and arguments; the maths is in holdfast.functional."""
