"""Names of the classes of a network, without reading its images: they may not be on this machine."""

import json
from pathlib import Path

from lipcert.cli.network import Source
from lipcert.errors import CheckpointError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo",
    "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree",
    "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree",
    "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit",
    "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe",
    "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
KNOWN = {"cifar10": CIFAR10, "cifar100": CIFAR100, "digits": tuple("0123456789")}


def class_names(source: Source, count: int) -> tuple[str, ...]:
    """One name per class: as the run's records have them, of a known dataset, or else "class 0", ...

    Args:
        source: the network.
        count: how many classes it tells apart.

    >>> class_names(Source(Path("a.safetensors"), "a", None, "cifar10"), 10)[3]
    'cat'
    >>> class_names(Source(Path("a.safetensors"), "a", None, None), 2)
    ('class 0', 'class 1')
    """
    names = KNOWN.get(source.data or "", ()) or _recorded(source.run)
    return names if len(names) == count else tuple(f"class {number}" for number in range(count))


def _recorded(run: Path | None) -> tuple[str, ...]:
    """The classes that training wrote down: the folders of images may have changed since."""
    from lipcert.certify.records import FILE

    if run is None or not (run / FILE).is_file():
        return ()
    with (run / FILE).open(encoding="utf-8") as file:
        try:
            return tuple(map(str, json.loads(file.readline())["classes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{run / FILE} is damaged ({error})") from error
