"""Attacks networks that ship by AutoAttack (l2, standard version): how accurate are they under attack?

    pip install --no-deps torchattacks      # it asks for torchvision, which it does not import
    python -m tools.autoattack lipconvnet5-cifar10 --count 1000
    python -m tools.fill_docs

AutoAttack tries two gradient attacks (APGD-CE and targeted APGD), FAB and the black-box Square attack, each
on the images that the ones before could not change. The table that fill_docs makes sets the share of images
that none of them changed between the certified and the standard accuracy. A line of the record is one test
image; a run that was interrupted goes on where it stopped.

Images that are certified at a radius are not attacked at it: `lipcert audit` attacks certificates, each at
its own radius. Points that an attack returns are not trusted: the proved network classifies each of them
again in float64, and its distance is computed anew.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks.classifier import certified_classifier
from lipcert.attacks.distance import l2_distances
from lipcert.certify.curve import RADII, shown
from lipcert.certify.network_file import read_network
from lipcert.data import load as load_data
from lipcert.data import to_float
from lipcert.machine import cpu_model
from lipcert.report.style import INK, drawing, stroke
from lipcert.schema import read_lines
from lipcert.zoo import FOLDER as ZOO
from lipcert.zoo import card as card_of
from tools.bench.tables import markdown_table

FOLDER = Path(__file__).parents[1] / "results/attacks"
SLACK = 1e-6
"""Attacks run in float32 at radii smaller by this part, so that what they return lies inside."""

Attack = Callable[[Tensor, Tensor, float], Tensor]
"""attack(images, labels, radius): for each image a point within the radius, if possible of another class."""


class Batch(TypedDict):
    """Test images that were attacked together, from number `first` on; a list has one entry for each.

    `changed_at` is the smallest of the radii at which an attack changed the prediction, if any.
    """

    first: int
    label: list[int]
    prediction: list[int]
    radius: list[float]
    changed_at: list[str | None]
    network_sha256: str
    seconds: float
    by: str


class Searchable(nn.Module):
    """The proved network in float32, with a parameter, by which torchattacks finds its device."""

    def __init__(self, network: lc.ProvedNetwork) -> None:
        super().__init__()
        self.network = network.module()
        self.anchor = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.network(images)
        return result


def autoattack(network: lc.ProvedNetwork) -> Attack:
    """AutoAttack of the package torchattacks against this network."""
    import torchattacks

    model, classes = Searchable(network).eval(), len(network.classes)

    def attack(images: Tensor, labels: Tensor, radius: float) -> Tensor:
        standard = torchattacks.AutoAttack(
            model, norm="L2", eps=radius * (1 - SLACK), version="standard", n_classes=classes, seed=0
        )
        found: Tensor = standard(images, labels)
        return found

    return attack


def attacked(network: lc.ProvedNetwork, images: Tensor, labels: Tensor, attack: Attack, first: int) -> Batch:
    """Attack each image at growing radii until its prediction changes.

    Args:
        network: whose predictions are attacked.
        images: (N, C, H, W), pixels in [0, 1].
        labels: (N,), true classes. Images that are classified wrongly are not attacked.
        attack: what to try.
        first: number of the first image in the test set.
    """
    start, threads = time.perf_counter(), torch.get_num_threads()
    certificates, classifier = network.certify(images), certified_classifier(network)
    changed: list[str | None] = [None] * len(images)
    left = certificates.prediction == labels
    for name, radius in RADII.items():
        tried = (left & (certificates.radius <= radius)).nonzero().flatten()
        if not len(tried):
            continue
        points = attack(images[tried], labels[tried], radius).detach().double()
        moved = classifier.logits(points).argmax(1) != labels[tried]
        moved &= l2_distances(images[tried], points) <= radius
        for index in tried[moved].tolist():
            changed[index], left[index] = name, False
    return {
        "first": first,
        "label": labels.tolist(),
        "prediction": certificates.prediction.tolist(),
        "radius": [float(shown(radius, 6)) for radius in certificates.radius.tolist()],
        "changed_at": changed,
        "network_sha256": network.hash,
        "seconds": round(time.perf_counter() - start, 1),
        "by": f"{cpu_model()}, {threads} thread{'s' * (threads != 1)}",
    }


def survey(name: str, count: int, size: int, folder: Path = FOLDER) -> None:
    """Attack the first `count` test images of a network that ships, those that are in its record excepted."""
    network, file = read_network(ZOO / f"{name}.proved.safetensors"), folder / f"{name}.jsonl"
    done = [batch for batch in read(file) if batch["network_sha256"] == network.hash]
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(batch) + "\n" for batch in done), encoding="utf-8")
    data, attack = load_data(card_of(name)["data"], split="test"), autoattack(network)
    for first in range(sum(len(batch["label"]) for batch in done), count, size):
        chosen = slice(first, min(first + size, count))
        found = attacked(network, to_float(data.images[chosen]), data.labels[chosen], attack, first)
        with file.open("a", encoding="utf-8") as record:
            record.write(json.dumps(found) + "\n")
        print(f"{name}: {chosen.stop} images, {found['seconds']} seconds for the last {size}", flush=True)


def read(file: Path) -> list[Batch]:
    """The batches in a record; none if there is no such file."""
    return read_lines(file, Batch) if file.exists() else []


def table(folder: Path = FOLDER) -> str:
    """Certified, attacked and standard accuracy of each network, on the images that were attacked."""
    rows, costs = [], []
    for file in sorted(folder.glob("*.jsonl")):
        batches = read(file)
        if {batch["network_sha256"] for batch in batches} != {card_of(file.stem)["network_sha256"]}:
            raise SystemExit(f"{file}: attacks another network than the one that ships; run it again")
        images = [
            image
            for batch in batches
            for image in zip(
                batch["label"], batch["prediction"], batch["radius"], batch["changed_at"], strict=True
            )
        ]
        right = [(radius, changed) for label, guess, radius, changed in images if label == guess]
        reached: list[str | None] = []
        for name, radius in RADII.items():
            reached.append(name)
            certified = sum(held > radius for held, _ in right)
            unchanged = sum(changed not in reached for _, changed in right)
            shares = [f"{100 * number / len(images):.1f}" for number in (certified, unchanged, len(right))]
            first = [f"`{file.stem}`", f"{len(images):,}"] if len(reached) == 1 else ["", ""]
            rows.append([*first, name, *shares])
        hours = sum(batch["seconds"] for batch in batches) / 3600
        costs.append(f"`{file.stem}` {hours:.1f} hours ({', '.join(sorted({b['by'] for b in batches}))})")
    if not rows:
        raise SystemExit(f"{folder}: no records; make them with python -m tools.autoattack")
    head = ["network", "images", "radius", "certified", "unchanged by AutoAttack", "standard"]
    text = f"Percent of the first test images. The attacks took: {'; '.join(costs)}."
    return f"{markdown_table(head, rows, numbers=3)}\n\n{text}"


def gap_figure() -> Figure:
    """How far the nearest attack of the audit was from each certificate, for every network that ships."""
    with drawing():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for position, file in enumerate(sorted(ZOO.glob("*.json"))):
            audit = card_of(file.stem)["audit"]
            if audit is None:
                continue
            histogram, look = audit["ratio"]["histogram"], stroke(position)
            within = accumulate(histogram["counts"][:-1])  # the last ones are beyond all edges
            axes.plot(
                histogram["edges"], [100 * number / audit["certified"] for number in within],
                label=f"{file.stem}, {audit['certified']} images",
                color=look.colour, linestyle=look.line, marker=look.marker, markersize=4,
            )  # fmt: skip
        axes.axvline(1, color=INK, linewidth=1.2)
        axes.set(
            xlim=(0.95, 3.05), ylim=(0, 102),
            xlabel="distance of the nearest attack / certified radius",
            ylabel="images with an attack this near, %",
        )  # fmt: skip
        axes.legend(loc="lower right")
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="network that ships")
    parser.add_argument("--count", type=int, default=1000, help="test images")
    parser.add_argument("--batch", type=int, default=50, help="images that are attacked at once")
    options = parser.parse_args()
    survey(options.name, options.count, options.batch)


if __name__ == "__main__":
    main()
