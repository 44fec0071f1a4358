"""Names of the classes of a network, without reading its images: they may not be on this machine."""

from lipcert.certify.network import numbered_classes
from lipcert.files import CERTIFICATES
from lipcert.runs.run import Run

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


def class_names(run: Run, count: int) -> tuple[str, ...]:
    """One name per class: those of a known dataset, or of the run's records, or else "class 0", ...

    The folders of images may have changed since the records were written.

    >>> class_names(Run("a", card={"data": "cifar10", "training": {}}), 10)[3]
    'cat'
    >>> class_names(Run("a"), 2)
    ('class 0', 'class 1')
    """
    names = KNOWN.get(run.data or "", ())
    if not names and run.folder is not None and (run.folder / CERTIFICATES).is_file():
        names = run.records.header.classes
    return names if len(names) == count else numbered_classes(count)
