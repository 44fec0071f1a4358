"""Proved bounds in float64 and rational arithmetic: `*_upper_bound` is proved, an `*_estimate` is not."""
