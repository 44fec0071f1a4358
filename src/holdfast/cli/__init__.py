"""The holdfast command line: parse, call, print."""

from holdfast.cli.app import main

__all__ = ["main"]
