"""From what a user names (a run, a file, a network of the zoo) to a file of weights and its images."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lipcert import zoo
from lipcert.errors import ArgumentError, CheckpointError, DataError, choose
from lipcert.files import BEST, LAST, PROVED

if TYPE_CHECKING:
    import torch

    from lipcert.certify.network import ProvedNetwork
    from lipcert.data.dataset import Dataset

WEIGHTS = {"last": LAST, "best": BEST}
FIXED_SIZE = ("cifar10", "cifar100")


@dataclass(frozen=True)
class Source:
    """A saved network.

    Attributes:
        file: proved, or its weights.
        name: for people.
        run: the folder of its run, if it has one.
        data: what it was trained on, if that is known.
    """

    file: Path
    name: str
    run: Path | None
    data: str | None

    def folder(self, data: str) -> Path:
        """Where what is found about it on these images belongs; a file does not say which are its own."""
        if self.run is not None:
            return self.run
        return Path("runs") / self.name / ("" if self.data is not None else Path(data).resolve().name)


def find_network(named: Path | None, shipped: str | None, weights: str) -> Source:
    """The network that the arguments of a command name.

    Raises:
        ArgumentError: none or two are named, or there is no such network in the zoo.
        CheckpointError: the run or file is not there, or the run has not saved a network yet.
    """
    choose("weights", weights, WEIGHTS)
    if (named is None) == (shipped is None):
        raise ArgumentError(
            "RUN: expected the folder of a run, a .safetensors file, or --zoo NAME (only one of them)"
        )
    if shipped is not None:
        _refuse_choice(weights, f"--zoo {shipped}")
        return _shipped(shipped)
    assert named is not None
    if named.is_file():
        if named.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"):
            raise ArgumentError(f"RUN: {named} is a picture; name a network, and the picture by --images")
        _refuse_choice(weights, str(named))
        return Source(named, named.name.removesuffix(".safetensors").removesuffix(".proved"), None, None)
    if not named.exists():
        raise CheckpointError(
            f"{named}: no such run; expected a folder that lipcert train wrote, or a file{_nearest(named)}"
        )
    file = named / PROVED if weights == "best" and (named / PROVED).is_file() else named / WEIGHTS[weights]
    if not file.is_file():
        raise CheckpointError(
            f"{named}: holds no {file.name}; finish the run with `lipcert train --out {named} --resume`"
            if (named / "config.toml").is_file()
            else f"{named}: is not the folder of a run; expected {file.name} in it"
        )
    return Source(file, named.resolve().name, named, _data_of(named))


def _refuse_choice(weights: str, named: str) -> None:
    if weights != "best":
        raise ArgumentError(f"weights: {named} is one network; {weights!r} chooses among those of a run")


def open_network(source: Source, device: str = "auto") -> "ProvedNetwork":
    """The proved network of a source; weights alone are proved here, which takes seconds.

    Raises:
        CheckpointError: the file is missing or damaged.
        ArgumentError: there is no such device here.
    """
    from lipcert.certify.network_file import is_proved_file, read_network
    from lipcert.certify.prove import prove
    from lipcert.cli.class_names import class_names
    from lipcert.models.storage import load

    target = pick_device(device)
    if is_proved_file(source.file):
        return read_network(source.file).to(target)
    model = load(source.file)
    return prove(model, classes=class_names(source, model.config.num_classes)).to(target)


def proved_file(source: Source, network: "ProvedNetwork", folder: Path) -> Path:
    """Where the proved network of a source is; one that was proved just now is written to `folder`."""
    from lipcert.certify.network_file import is_proved_file

    if is_proved_file(source.file):
        return source.file
    file = folder / f"{source.file.stem}.proved.safetensors"
    network.save(file)
    return file


def test_images(source: Source, data: str | None, network: "ProvedNetwork") -> "Dataset":
    """The test images for a network, at its size.

    Raises:
        ArgumentError: nobody says which images, or the network is for others.
        DataError: they are missing or damaged.
    """
    from lipcert.data import load

    name = data or source.data
    if name is None:
        raise ArgumentError(
            f"data: {source.file} does not say which images it is for; pass --data digits, cifar10, "
            "cifar100 or a folder"
        )
    size = None if name in FIXED_SIZE else network.input_shape[1]
    images = load(name, split="test", image_size=size)
    _refuse_other_draw(source, name, images)
    if images.image_shape != network.input_shape:
        raise ArgumentError(
            f"data: {name} has images of shape {images.image_shape}, but {source.name} takes "
            f"{network.input_shape}; name the images it was made for"
        )
    if images.num_classes != len(network.classes):
        raise ArgumentError(
            f"data: {name} has {images.num_classes} classes, but {source.name} tells "
            f"{len(network.classes)} apart; name the images it was made for"
        )
    return images


def _refuse_other_draw(source: Source, name: str, images: "Dataset") -> None:
    """The test images of a plain folder are drawn from its files: from other files, trained ones would be."""
    from lipcert.certify.records import FILE, read_records
    from lipcert.data.folder import has_splits

    folder = Path(name).expanduser()
    if source.run is None or not folder.is_dir() or has_splits(folder):
        return
    if not (source.run / FILE).is_file():
        return
    written = read_records(source.run)
    same = Path(written.data).expanduser().resolve() == folder.resolve()
    if same and written.data_hash != images.fingerprint:
        raise DataError(
            f"data: {name} holds other files than when {source.name} was trained, so that some of its "
            "training images would be tested; put the files back, or make train and test subfolders"
        )


def default_folder(
    source: Source,
    made_by: str,
    network: "ProvedNetwork",
    *,
    data: str,
    count: int | None,
    weights: str,
) -> Path:
    """Where records of a command go: into the run's folder, or a folder of their own if they differ from it.

    A run stands for the whole test set of its data and its best weights, proved.

    Raises:
        ArgumentError: the folder of a file, or of a network of the zoo, would be that of somebody's run, or
            holds what was found about another network.
    """
    base = source.folder(data)
    if source.run is None and any((place / "config.toml").exists() for place in (base, base.parent)):
        raise ArgumentError(f"out: {base} is in the folder of a run; name another one with --out")
    parts = [] if source.data in (None, data) else [Path(data).resolve().name]
    parts += [] if count is None else [f"first{count}"]
    parts += [] if weights == "best" else [weights]
    folder = base / "-".join([made_by, *parts]) if parts else base
    if source.run is None:
        _refuse_others(folder, network)
    return folder


def _refuse_others(folder: Path, network: "ProvedNetwork") -> None:
    """Two files may have one name: what was found about the first is not replaced in silence."""
    from lipcert.attacks.report import SUMMARY
    from lipcert.certify.records import FILE

    for file in (folder / FILE, folder / SUMMARY):
        if not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
            known = json.loads(text.partition("\n")[0] if file.name == FILE else text)["network_sha256"]
        except (OSError, ValueError, KeyError, TypeError):  # damaged: nothing that could be lost
            continue
        if known != network.hash:
            raise ArgumentError(f"out: {folder} is about another network; name another folder with --out")


def pick_device(name: str) -> "torch.device":
    """The device that is asked for; "auto" is a GPU if there is one.

    Raises:
        ArgumentError: there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(
            f"device: expected auto, cpu, cuda or another device of this machine, got {name!r}"
        ) from error
    return device


def _shipped(name: str) -> Source:
    known = zoo.proved_networks()
    file = known[choose("zoo", name, known)]
    card = zoo.FOLDER / f"{name}.json"
    return Source(file, name, None, json.loads(card.read_text(encoding="utf-8"))["data"])


def _data_of(run: Path) -> str | None:
    path = run / "config.toml"
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8"))["data"]) if path.is_file() else None
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error


def _nearest(named: Path) -> str:
    from difflib import get_close_matches

    siblings = (
        [entry.name for entry in named.parent.iterdir() if entry.is_dir()] if named.parent.is_dir() else []
    )
    near = get_close_matches(named.name, siblings, n=1, cutoff=0.6)
    return f"; did you mean '{named.parent / near[0]}'?" if near else ""
