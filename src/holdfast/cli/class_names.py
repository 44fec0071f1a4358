"""Names of the classes of a network, without reading its images: they may not be on this machine."""

from pathlib import Path

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


def class_names(data: str | None, count: int) -> tuple[str, ...]:
    """One name per class: of a known dataset, of the folders of one's own images, or else "class 0", ...

    Args:
        data: what the network was trained on, if known.
        count: how many classes it tells apart.

    >>> class_names("cifar10", 10)[3], class_names(None, 2)
    ('cat', ('class 0', 'class 1'))
    """
    names = KNOWN.get(data or "", ()) or _folders(data)
    return names if len(names) == count else tuple(f"class {number}" for number in range(count))


def _folders(data: str | None) -> tuple[str, ...]:
    """Class folders as `holdfast.data` sorts them; none if the folder has gone."""
    root = Path(data).expanduser() if data else None
    if root is None or not root.is_dir():
        return ()
    if (root / "train").is_dir() and (root / "test").is_dir():
        root = root / "train"
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
