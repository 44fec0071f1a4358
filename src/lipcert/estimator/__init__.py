"""A classifier with a guarantee in the manner of scikit-learn."""

from lipcert.estimator.classifier import DEFAULTS, RobustClassifier

__all__ = ["DEFAULTS", "RobustClassifier"]
