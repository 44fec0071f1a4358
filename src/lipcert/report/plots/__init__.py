"""Pictures, one per file; each is a function of plain numbers that returns a figure."""
