"""Optimizers: Muon for the matrices of orthogonal convolutions, with SGD for everything else."""

from lipcert.optim.groups import muon_groups
from lipcert.optim.muon import Muon
from lipcert.optim.newton_schulz import orthogonalize

__all__ = ["Muon", "muon_groups", "orthogonalize"]
