"""Speed on this machine: the same work by the paper's formulation, by holdfast and by its peers."""
