"""One function for whatever holds a network: a proved file, a run, a name of the zoo, trainable weights."""

import os
from pathlib import Path

from lipcert import zoo
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.network_file import is_proved_file, read_network
from lipcert.files import BEST, PROVED
from lipcert.models.lipconvnet import LipConvnet
from lipcert.models.storage import load as load_weights


def load(path: str | os.PathLike[str]) -> ProvedNetwork | LipConvnet:
    """Read a network: proved where there is a proof, trainable where there are only weights.

    Args:
        path: a file that `ProvedNetwork.save` or `lipcert.save` wrote, the folder of a run, or the name of a
            network that ships with the package.

    Returns:
        a `ProvedNetwork` of a proved file, of a run that has finished and of a network that ships; a
        `LipConvnet` of a file of weights and of a run that goes on.

    Raises:
        CheckpointError: no such file, folder or name, or a damaged one.
    """
    place = Path(path)
    if place.is_dir() and ((place / PROVED).is_file() or (place / BEST).is_file()):
        place = place / PROVED if (place / PROVED).is_file() else place / BEST
    elif not place.exists() and str(path) in zoo.proved_networks():
        place = zoo.proved_networks()[str(path)]
    return read_network(place) if place.is_file() and is_proved_file(place) else load_weights(place)
