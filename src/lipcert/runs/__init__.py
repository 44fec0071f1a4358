"""The folder of a run: a schema for each of its files, one class to read them, one way to name networks."""
