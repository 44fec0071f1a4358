"""The holdfast command line: parse, call, print."""
