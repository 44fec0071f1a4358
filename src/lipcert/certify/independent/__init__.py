"""A second implementation of proved networks, in numpy and float64, to check the first against.

It reads the file of a proved network by itself and shares no code with the package but its error types:
`reading` makes a `tree` of the file, `evaluation` and `activations` compute every operator by slow and
obvious code with a bound on its own rounding, `constants`, `norms` and `skew` derive the Lipschitz constants
again, by other methods than the package's and without a look at those that the file states.
"""

from lipcert.certify.independent.constants import Constants, derive_constants
from lipcert.certify.independent.evaluation import Evaluation, evaluate
from lipcert.certify.independent.reading import read_network
from lipcert.certify.independent.tree import Leaf, Network

__all__ = ["Constants", "Evaluation", "Leaf", "Network", "derive_constants", "evaluate", "read_network"]
