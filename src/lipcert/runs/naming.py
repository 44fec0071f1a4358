"""Finds a network by a proved file, a file of weights, the folder of a run, or a name of the zoo."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from lipcert import zoo
from lipcert.errors import ArgumentError, CheckpointError, choose
from lipcert.files import CONFIG, PICTURES
from lipcert.runs.run import WEIGHTS, Run

if TYPE_CHECKING:
    from lipcert.certify.network import ProvedNetwork
    from lipcert.models.network import Network


def find_run(named: str | os.PathLike[str], weights: str = "best") -> Run:
    """Find a network; a file or the folder of a run takes precedence over a network that ships.

    Args:
        named: a path or a name of the zoo.
        weights: of a run, "best" or "last".

    Raises:
        ArgumentError: it is a picture, or `weights` was chosen for a single network.
        CheckpointError: there is no such network, or the run has not saved one yet.
    """
    choose("weights", weights, WEIGHTS)
    path, shipped = Path(named), zoo.networks() | zoo.proved_networks()
    if path.is_dir():
        run = Run.at(path, weights=weights)
        if run.weights or run.proved:
            return run
        if str(named) not in shipped:
            file = WEIGHTS[weights]
            raise CheckpointError(
                f"{named}: holds no {file}; finish the run with `lipcert train --out {named} --resume`"
                if (path / CONFIG).is_file()
                else f"{named}: is not the folder of a run; expected {file} in it"
            )
    if not path.is_file() and str(named) not in shipped:
        raise CheckpointError(
            f"{named}: no such file or folder, and no network of this name ships with lipcert"
            f"{_nearest(path, shipped)}"
        )
    if weights != "best":
        raise ArgumentError(f"weights: {named} is one network; {weights!r} chooses among those of a run")
    if not path.is_file():
        name = str(named)
        files = zoo.networks().get(name), zoo.proved_networks().get(name)
        return Run(name, None, *files, zoo.card(name))
    if path.suffix.lower() in PICTURES:
        raise ArgumentError(f"NETWORK: {named} is a picture; name a network, and the picture by --images")
    from lipcert.certify.network_file import is_proved_file

    name = path.name.removesuffix(".safetensors").removesuffix(".proved")
    return Run(name, proved=path) if is_proved_file(path) else Run(name, weights=path)


def load(path: str | os.PathLike[str]) -> "ProvedNetwork | Network":
    """Read a network: proved where there is a proof, trainable where there are only weights.

    Args:
        path: a file that `ProvedNetwork.save` or `lipcert.save` wrote, the folder of a run, or the name of a
            network that ships with the package.

    Returns:
        a `ProvedNetwork` of a proved file, of a run that has finished and of a network that ships; a
        `LipConvnet` or `LiResNet` of a file of weights and of a run that goes on.

    Raises:
        CheckpointError: no such file, folder or name, or a damaged one.
    """
    from lipcert.models.storage import load as load_weights

    run = find_run(path)
    return load_weights(run.file) if run.proved is None else run.network


def _nearest(path: Path, shipped: Iterable[str]) -> str:
    """A suggestion: a name of the zoo, or a neighbour of the path."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    known = {entry.name: str(entry) for entry in beside if entry.is_dir() or entry.suffix == ".safetensors"}
    known |= {name: name for name in shipped} if path.name == str(path) else {}
    near = get_close_matches(path.name, known, n=1, cutoff=0.6)
    return f"; did you mean '{known[near[0]]}'?" if near else ""
