"""The paper's tables and figures, reported beside measured."""
