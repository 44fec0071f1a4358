"""Speed on this machine: the same work by the paper's formulation, by lipcert and by its peers."""
