"""A certified classifier with the API of scikit-learn."""

from lipcert.estimator.classifier import DEFAULTS, RobustClassifier

__all__ = ["DEFAULTS", "RobustClassifier"]
