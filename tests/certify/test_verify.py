"""True records are confirmed by the second implementation, and whatever is invented is noticed."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lipcert as lc
from lipcert import operators as op
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.certify.verify import Verification, verify
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.nn import CONVOLUTIONS

from .test_independent import proved_tree, randn, rewrite

SHAPE, COUNT = (1, 8, 8), 12
Change = Callable[[Any], Any]


class Sent:
    """A folder as a stranger sends it: a proved network, and records of some images."""

    def __init__(self, folder: Path, proved: ProvedNetwork, images: Tensor, labels: Tensor) -> None:
        self.folder, self.proved, self.images, self.labels = folder, proved, images, labels
        self.network = folder / "net.proved.safetensors"
        proved.save(self.network)
        found = proved.certify(images)
        columns = ("prediction", "runner_up", "margin", "rounding", "radius")
        self.header: dict[str, Any] = {
            "format": "lipcert certificates 2", "network": self.network.name, "network_sha256": proved.hash,
            "data": "digits", "data_sha256": "", "images": len(images), "classes": proved.classes,
            "lipschitz": found.lipschitz, "name": proved.name, "input_shape": proved.input_shape,
            "layers": [
                {"path": leaf.path, "layer": leaf.layer, "operator": type(leaf.operator).__name__,
                 "input_shape": leaf.input_shape, "lipschitz": leaf.lipschitz}
                for leaf in proved.layers
            ],
        }  # fmt: skip
        self.rows: list[dict[str, Any]] = [
            {
                "index": i,
                "label": int(labels[i]),
                **{name: getattr(found, name)[i].item() for name in columns},
            }
            for i in range(len(images))
        ]
        for row in self.rows:
            row |= {n: None for n in ("margin", "radius") if row[n] == math.inf}

        self.best = int(found.radius.argmax())

    def verify(self, *, sample: int = COUNT, seed: int | None = None) -> Verification:
        """Write the records and verify them."""
        lines = map(json.dumps, [self.header, *self.rows])
        (self.folder / "certificates.jsonl").write_text("\n".join(lines) + "\n")
        return verify(self.folder, self.network, self.images, self.labels, sample=sample, seed=seed)


def lipconvnet(
    conv: str = "soc", activation: str = "hh1", head: str = "lln", series: str = "isometric"
) -> torch.nn.Module:
    model = lc.lipconvnet(5, conv, activation, head, 5, width=2, image_size=8, in_channels=1, series=series)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("theta", "widths", "vectors", "bias")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def send(folder: Path, model: torch.nn.Module | None = None) -> Sent:
    proved = prove(lipconvnet() if model is None else model, SHAPE)
    return Sent(folder, proved, torch.rand(COUNT, *SHAPE), torch.arange(COUNT) % 5)


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return send(tmp_path)


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("activation", ["maxmin", "groupsort4", "hh1", "hh2", "hh3", "chain2", "nd4"])
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_every_lipconvnet_is_confirmed(conv: str, activation: str, head: str, tmp_path: Path) -> None:
    sent = send(tmp_path, lipconvnet(conv, activation, head))
    found = sent.verify()
    assert not found.problems
    assert found.margin_difference < 1e-12
    assert max(row["radius"] for row in sent.rows) > 0
    assert 0 < found.gain <= found.lipschitz
    # Rounding is bounded more tightly here than by the package, so that honest rows pass.
    assert found.tolerance < min(row["rounding"] for row in sent.rows)
    assert all(layer.derived <= layer.stated * (1 + 1e-7) + 1e-14 for layer in found.layers)
    sent.rows[sent.best]["radius"] *= 1 + 1e-5
    (problem,) = sent.verify().problems
    assert problem.startswith(f"image {sent.best}: written radius")


@pytest.mark.parametrize("series", ["wide", "exponential"])
def test_other_series_are_confirmed(series: str, tmp_path: Path) -> None:
    assert not send(tmp_path, lipconvnet(series=series)).verify().problems


def test_networks_of_branches_are_confirmed(tmp_path: Path) -> None:
    """The average of a network on an image and on its mirror image, with a residual part."""
    body = op.Sequence.of(
        op.Reshape((16, 2, 2)), op.CircularConvolution(randn(8, 16, 3, 3, scale=0.1), randn(8)),
        op.WeightedSum((op.Sequence(()), op.Householder(randn(4))), (0.5, 0.7)),
        op.Concatenation((op.GroupSort(2), op.HouseholderND(randn(1, 2, 4)))), op.Reshape(),
        op.Matrix(randn(5, 64), randn(5)),
    )  # fmt: skip
    tree = op.WeightedSum((body, op.Sequence.of(op.Mirror(), body)), (0.5, 0.5))
    proved = ProvedNetwork(proved_tree(tree, SHAPE), SHAPE, tuple("abcde"))
    sent = Sent(tmp_path, proved, torch.rand(COUNT, *SHAPE), torch.arange(COUNT) % 5)
    found = sent.verify()
    assert not found.problems
    assert 0 < found.gain <= found.lipschitz
    sent.rows[sent.best]["radius"] *= 1 + 1e-5
    assert len(sent.verify().problems) == 1


def test_a_classifier_of_one_class(tmp_path: Path) -> None:
    tree = op.Sequence((op.Reshape(), op.Matrix(randn(1, 64), None)))
    proved = ProvedNetwork(proved_tree(tree, SHAPE), SHAPE, ("only",))
    sent = Sent(tmp_path, proved, torch.rand(COUNT, *SHAPE), torch.zeros(COUNT, dtype=torch.int64))
    assert sent.rows[0]["radius"] is None
    assert not sent.verify().problems
    sent.rows[0]["runner_up"] = 0
    assert sent.verify().problems == ("image 0: written for several classes, but there is one",)


def test_what_is_reported(sent: Sent) -> None:
    found = sent.verify(sample=8)
    assert not found.problems
    assert len(found.checked) == 8
    assert found.radius_excess <= 1e-7
    assert {layer.operator for layer in found.layers} >= {"SkewPolynomial", "Matrix", "Householder"}
    assert found.lipschitz == pytest.approx(sent.header["lipschitz"], rel=1e-9)
    assert sent.verify(sample=100).checked == tuple(range(COUNT))
    assert not sent.verify(sample=1).problems


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("label", lambda label: (label + 1) % 5, r"written label \d, but it is \d$"),
        ("label", lambda _: None, r"written label None, but it is \d$"),
        ("radius", lambda r: r * (1 + 2e-7), r"written radius .*, but at most .* can be certified"),
        ("radius", lambda r: r * (1 + 1e-3), r"written radius .*, but at most .* can be certified"),
        ("radius", lambda _: 10.0, r"written radius 10, but at most .* can be certified"),
        ("radius", lambda _: 1e7, r"written radius 10000000, but at most"),
        ("radius", lambda _: None, r"written radius inf, but at most"),
        ("margin", lambda m: m + 1e-6, r"written margin .*, found"),
        ("margin", lambda _: None, r"written margin inf, found"),
        ("prediction", lambda p: (p + 1) % 5, r"written prediction \d, found \d"),
        ("prediction", lambda p: 5, r"written prediction 5, but there are 5 classes"),
        ("prediction", lambda p: -1, r"written prediction -1, but there are 5 classes"),
        ("runner_up", lambda _: -1, r"written runner-up -1, but that is no other class"),
        ("rounding", lambda r: 2 * r + 1e-3, r"written radius .*, but at most .* can be certified"),
    ],
)
def test_one_false_number_is_noticed(sent: Sent, name: str, change: Change, message: str) -> None:
    row = sent.rows[sent.best]
    row[name] = change(row[name])
    (problem,) = sent.verify().problems
    assert re.search(message, problem)
    assert problem.startswith(f"image {sent.best}:")


def test_a_false_runner_up_is_noticed_even_with_its_own_margin(sent: Sent) -> None:
    row = sent.rows[sent.best]
    logits = sent.proved.logits(sent.images[sent.best : sent.best + 1])[0]
    other = next(k for k in range(5) if k not in (row["prediction"], row["runner_up"]))
    row |= {"runner_up": other, "margin": float(logits[row["prediction"]] - logits[other])}
    (problem,) = sent.verify().problems
    assert "is the class that limits the radius" in problem


def with_head_bias(bias: Tensor) -> torch.nn.Module:
    model = lipconvnet().double()
    with torch.no_grad():
        model.head.bias.copy_(bias)  # type: ignore[union-attr, operator]
    return model


@pytest.mark.parametrize("bias", [1e3, 1e9, 1e12, 1e60])
@pytest.mark.parametrize("rounding", [0.0, 1e9])
@pytest.mark.parametrize("radius", [10.0, 1.0])
def test_no_bias_makes_room_for_invented_rows(
    bias: float, rounding: float, radius: float, tmp_path: Path
) -> None:
    """Rounding of large numbers excuses nothing: neither rows with the true labels, nor those that are right
    in all but the radius.
    """
    sent = send(tmp_path, with_head_bias(torch.full((5,), bias, dtype=torch.float64)))
    everything = {f"image {i}" for i in range(COUNT)}
    sent.rows = [row | {"rounding": rounding, "radius": radius} for row in sent.rows]
    assert {p.split(":")[0] for p in sent.verify().problems} == everything
    sent.rows = [
        row | {"prediction": row["label"], "runner_up": (row["label"] + 1) % 5, "margin": 0.0}
        for row in sent.rows
    ]
    assert {p.split(":")[0] for p in sent.verify().problems} == everything


def test_rounding_that_hides_a_margin_confirms_nothing(tmp_path: Path) -> None:
    sent = send(tmp_path, with_head_bias(torch.full((5,), 1e60, dtype=torch.float64)))
    assert not sent.verify().problems  # all logits are equal, and no radius is claimed
    for row in sent.rows:
        row["radius"] = 1e-9
    problems = sent.verify().problems
    assert len(problems) == COUNT
    assert all("hides the margin of 0, so that nothing can be confirmed" in problem for problem in problems)
    sent.rows = [
        row | {"radius": 0, "prediction": row["label"], "runner_up": (row["label"] + 1) % 5}
        for row in sent.rows
    ]
    # Of equal logits the first is the prediction, and nobody may choose the one that is right.
    wrong = tuple(f"image {i}: written prediction {i % 5}, found 0" for i in range(COUNT) if i % 5)
    assert sent.verify().problems == wrong


def test_rounding_is_taken_off_even_if_the_row_says_there_is_none(tmp_path: Path) -> None:
    sent = send(tmp_path, with_head_bias(torch.full((5,), 1e11, dtype=torch.float64)))
    row, distances = sent.rows[sent.best], sent.proved.pair_bounds
    row |= {"rounding": 0.0, "radius": row["margin"] / float(distances[row["prediction"], row["runner_up"]])}
    (problem,) = sent.verify().problems
    assert "can be certified" in problem


@pytest.mark.parametrize("bias", [1e3, 1e9, 1e10, 3e10])
def test_honest_rows_of_large_numbers_are_confirmed(bias: float, tmp_path: Path) -> None:
    sent = send(tmp_path, with_head_bias(torch.full((5,), bias, dtype=torch.float64)))
    assert max(row["radius"] for row in sent.rows) > 0
    found = sent.verify()
    assert not found.problems
    assert found.tolerance < 1e-14 * bias


def test_one_huge_logit_does_not_widen_the_check_of_the_others(tmp_path: Path) -> None:
    sent = send(tmp_path, with_head_bias(torch.tensor([0.0, 0.0, 0.0, 0.0, -1e9])))
    assert not sent.verify().problems
    for row in sent.rows:
        row["radius"] += 1e-3
    assert len(sent.verify().problems) == COUNT


@pytest.mark.parametrize("factor", [0.99, 0.5])
@pytest.mark.parametrize("kind", ["ChannelAffine", "SkewPolynomial", "Householder", "Matrix"])
def test_a_stated_constant_that_is_too_small_is_noticed(sent: Sent, kind: str, factor: float) -> None:
    """In a file with a hash that fits, with records that fit to it."""

    def lower(description: dict[str, Any]) -> None:
        for leaf in description["operator"]["parts"]:
            if leaf["operator"]["kind"] == kind:
                leaf["lipschitz"] *= factor
                return

    rewrite(sent.network, lower)
    sent.header["network_sha256"] = file_hash(sent.network)
    place = next(i for i, layer in enumerate(sent.header["layers"]) if layer["operator"] == kind)
    sent.header["layers"][place]["lipschitz"] *= factor
    problems = sent.verify().problems
    assert len(problems) == 1
    assert re.search(rf"\({kind}\): stated constant .*(can be derived|sampled inputs apart)", problems[0])


def file_hash(path: Path) -> str:
    return str(re.search(rb'sha256\\": \\"([0-9a-f]{64})', path.read_bytes())[1].decode())  # type: ignore[index]


@pytest.mark.parametrize("factor", [1 - 1e-5, 1 - 5e-4])
def test_constants_that_are_a_little_too_small_do_not_widen_radii(sent: Sent, factor: float) -> None:
    """The stated constants may differ by 1e-3 from the derived ones, for they decide on nothing."""
    rewrite(sent.network, lambda d: d["operator"]["parts"][0].update(
        lipschitz=d["operator"]["parts"][0]["lipschitz"] * factor))  # fmt: skip
    sent.header["network_sha256"] = file_hash(sent.network)
    sent.header["layers"][0]["lipschitz"] *= factor
    (problem,) = sent.verify().problems
    assert re.search(r"normalize \(ChannelAffine\): stated .* pulls two sampled inputs apart", problem)
    for row in sent.rows:
        row["radius"] /= factor
    assert sum("can be certified" in p for p in sent.verify().problems) == COUNT


@pytest.mark.parametrize("factor", [0.99, 0.5, 0.025])
def test_a_constant_in_the_records_that_is_too_small_is_noticed(sent: Sent, factor: float) -> None:
    sent.header["lipschitz"] *= factor
    (problem,) = sent.verify().problems
    assert re.search(r"records: stated constant .*, but .* is what can be derived", problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["4", "3", "2", "1", "0"]}, "name the classes otherwise"),
        ({"layers": []}, "list other operators or constants"),
        ({"images": 13}, "speak of a set of 13 images, but it has 12"),
        ({"name": "ResNet-152"}, "call the network 'ResNet-152', its file 'LipConvnet-5"),
        ({"input_shape": [3, 224, 224]}, "speak of inputs of shape (3, 224, 224), but"),
    ],
)
def test_a_false_header_is_noticed(sent: Sent, change: dict[str, Any], message: str) -> None:
    sent.header |= change
    (problem,) = sent.verify().problems
    assert message in problem


@pytest.mark.parametrize("change", [{"input_shape": [9]}, {"layer": "Other"}, {"path": "elsewhere"}])
def test_a_false_layer_in_the_header_is_noticed(sent: Sent, change: dict[str, Any]) -> None:
    sent.header["layers"][2] |= change
    (problem,) = sent.verify().problems
    assert "list other operators or constants" in problem


def test_images_may_be_read_one_by_one(sent: Sent) -> None:
    sent.verify()
    read: list[int] = []

    def picture(place: int) -> Tensor:
        read.append(place)
        return sent.images[place]

    found = verify(sent.folder, sent.network, picture, sample=3)
    assert not found.problems
    assert tuple(read) == found.checked
    with pytest.raises(ArgumentError, match="images: expected at least"):
        verify(sent.folder, sent.network, lambda _: sent.images[0, 0])


def test_images_that_are_counted_twice_are_noticed(sent: Sent) -> None:
    sent.rows = [sent.rows[3], *sent.rows[:3], sent.rows[3]]
    assert sent.verify(sample=1).problems == ("image 3: written 2 times",)
    sent.rows = [sent.rows[0] | {"index": 12}]
    with pytest.raises(ArgumentError, match="labels: the records point beyond the 12 images"):
        sent.verify()
    with pytest.raises(ArgumentError, match="images: expected at least"):
        verify(sent.folder, sent.network, sent.images)


def test_labels_of_rows_outside_the_sample_are_checked(sent: Sent) -> None:
    for row in sent.rows:
        row["label"] = (row["label"] + 1) % 5
    assert len(sent.verify(sample=1).problems) == COUNT


def test_nobody_can_forge_around_the_sample(sent: Sent) -> None:
    known = sent.verify(sample=4, seed=0).checked
    sent.rows = [row if row["index"] in known else row | {"radius": 1000.0} for row in sent.rows]
    assert not sent.verify(sample=4, seed=0).problems
    # A sample that meets no forged row has a chance of 1 in 495; all of three such, of 1 in 10^8.
    assert any(sent.verify(sample=4).problems for _ in range(3))


def test_a_changed_network_is_refused(sent: Sent) -> None:
    content = bytearray(sent.network.read_bytes())
    content[-1] ^= 1
    sent.network.write_bytes(content)
    with pytest.raises(CheckpointError, match="has been changed since it was written"):
        sent.verify()
    sent.header["network_sha256"] = "0" * 64
    sent.proved.save(sent.network)
    with pytest.raises(CheckpointError, match="is another network than the one"):
        sent.verify()


def test_images_and_sample_are_checked(sent: Sent) -> None:
    sent.verify()
    with pytest.raises(ArgumentError, match="images: expected at least 12"):
        verify(sent.folder, sent.network, sent.images[:3], sample=12)
    with pytest.raises(ArgumentError, match="sample: expected at least 1, got 0"):
        sent.verify(sample=0)
    with pytest.raises(ArgumentError, match=r"images: expected pixels in \[0, 1\]"):
        verify(sent.folder, sent.network, sent.images * 2)


def test_bytes_are_the_pixels_that_the_data_reader_makes(tmp_path: Path) -> None:
    levels = torch.randint(0, 256, (COUNT, *SHAPE), dtype=torch.uint8)
    proved = prove(lipconvnet(), SHAPE)
    sent = Sent(tmp_path, proved, levels.float() / 255, torch.arange(COUNT) % 5)
    sent.images = levels
    found = sent.verify()
    assert not found.problems
    assert found.margin_difference < 1e-12


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, '{"format": "lipcert certificates 1"}', "expected the format 'lipcert certificates 2'"),
        (0, "[]", "expected the format .* got \\[\\]"),
        (1, "{}", "line 2: lacks index, label, margin"),
        (1, "7", "line 2: expected a table, got 7"),
        (1, "{", "is damaged .Expecting property name"),
        (1, ("index", "1.0"), "line 2.index: expected int, got 1.0"),
        (1, ("index", "true"), "index: expected int, got True"),
        (1, ("index", '"0"'), "index: expected int, got '0'"),
        (1, "[" * 10**5, "it is nested too deeply"),
        (1, ("radius", "NaN"), "NaN is no number in JSON"),
        (1, ("radius", "-Infinity"), "-Infinity is no number in JSON"),
        (1, ("radius", "-1.0"), "radius: expected a number that is not negative, or null, got -1.0"),
        (1, ("radius", '"10"'), "radius: expected a number or nothing, got '10'"),
        (1, ("radius", "true"), "radius: expected a number or nothing, got True"),
        (1, ("rounding", "-1e9"), "rounding: expected a number that is not negative"),
        (1, ("margin", "[1]"), r"margin: expected a number or nothing, got \[1\]"),
        (1, ("label", "0.5"), "label: expected int or nothing, got 0.5"),
        (1, ("radius", "1" * 400), "radius: expected a number or nothing, got 1111"),
    ],
)
def test_lines_of_another_kind_are_refused(
    sent: Sent, line: int, text: str | tuple[str, str], message: str
) -> None:
    sent.verify(sample=1)
    path = sent.folder / "certificates.jsonl"
    lines = path.read_text().splitlines()
    if isinstance(text, tuple):
        name, value = text
        text = json.dumps(json.loads(lines[line]) | {name: "HERE"}).replace('"HERE"', value)
    lines[line] = text
    path.write_text("\n".join(lines))
    with pytest.raises(CheckpointError, match=message) as error:
        verify(sent.folder, sent.network, sent.images)
    assert "\n" not in str(error.value)


def test_missing_and_empty_records_are_refused(sent: Sent) -> None:
    with pytest.raises(CheckpointError, match=r"expected a folder with certificates\.jsonl"):
        verify(sent.folder / "none.jsonl", sent.network, sent.images)
    sent.rows = []
    with pytest.raises(CheckpointError, match="expected one line for each image, got none"):
        sent.verify()
