"""Networks that ship with the package."""
