"""The second implementation agrees with the first, and notices records that are wrong."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lipcert as lc
from lipcert.certify.exact import exact_network, network_hash
from lipcert.certify.independent import read_network
from lipcert.certify.records import FILE
from lipcert.certify.verify import verify
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.models.lipconvnet import LipConvnet

SHAPE = (1, 8, 8)


def network(
    conv: str = "soc", activation: str = "hh1", head: str = "lln", series: str = "isometric"
) -> LipConvnet:
    model = lc.lipconvnet(10, conv, activation, head, 5, width=4, image_size=8, in_channels=1, series=series)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "theta" in name or "widths" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("conv", "activation", "head", "series"),
    [
        ("soc", "hh1", "lln", "isometric"),
        ("soc", "hh1", "orthogonal", "exponential"),
        ("soc", "hh1", "orthogonal", "wide"),
        ("bcop", "maxmin", "lln", "isometric"),
        ("bcop", "hh2", "orthogonal", "isometric"),
        ("cayley", "hh3", "lln", "isometric"),
        ("cayley", "chain2", "orthogonal", "isometric"),
        ("soc", "nd4", "lln", "isometric"),
        ("soc", "groupsort4", "lln", "isometric"),
    ],
)
def test_two_implementations_of_the_same_function(
    conv: str, activation: str, head: str, series: str, tmp_path: Path
) -> None:
    model = network(conv, activation, head, series)
    lc.save(model, tmp_path / "m.safetensors")
    images = torch.rand(4, *SHAPE, dtype=torch.float64)
    first = exact_network(model, SHAPE)
    features = images
    for proved in first.layers:
        features = proved.layer(features)
    second = read_network(tmp_path / "m.safetensors")
    weight, bias = second.head()
    found = second.features(images.numpy())
    # Both are float64 with some 10^3 terms per sum; 1e-12 is four digits above what is seen.
    assert first.head is not None
    torch.testing.assert_close(torch.from_numpy(found), features, rtol=0, atol=1e-12)
    logits = torch.from_numpy(found @ weight.T + bias)
    torch.testing.assert_close(logits, first.head(features), rtol=0, atol=1e-12)


def test_half_precision_files_are_read(tmp_path: Path) -> None:
    model = network().to(torch.bfloat16)
    lc.save(model, tmp_path / "m.safetensors")
    weight = read_network(tmp_path / "m.safetensors").tensors["head.weight"]
    assert torch.equal(torch.from_numpy(weight), model.head.weight.detach().double())  # type: ignore[union-attr]


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path, torch.Tensor]:
    """Records, model and images, in the form that `lipcert certify` writes."""
    model = network()
    weights = tmp_path / "model.safetensors"
    lc.save(model, weights)
    images = torch.rand(12, *SHAPE)
    cert = lc.certify(model, images)
    lines = [
        {"weights_sha256": network_hash(model), "lipschitz": cert.lipschitz, "precision": cert.precision}
    ]
    for i in range(len(images)):
        columns = ("prediction", "runner_up", "margin", "rounding", "radius")
        lines.append(
            {"index": i, "label": i % 5, **{name: getattr(cert, name)[i].item() for name in columns}}
        )
    (tmp_path / FILE).write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / FILE, weights, images


def test_true_records_are_confirmed(written: tuple[Path, Path, torch.Tensor]) -> None:
    records, weights, images = written
    result = verify(records, weights, images, sample=8)
    assert result.agrees, result.problems
    assert len(result.checked) == 8
    assert result.margin_difference < 1e-12
    assert result.radius_excess <= 0
    assert 0 < result.gain <= json.loads(records.read_text().splitlines()[0])["lipschitz"]
    assert verify(records.parent, weights, images, sample=100).checked == tuple(range(12))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("label", lambda label: (label + 1) % 5, r"image \d+: written label \d, but it is \d"),
        ("radius", lambda r: r * 1.0001, r"written radius .*, but at most .* can be certified"),
        ("margin", lambda m: m + 1e-6, r"written margin .*, found"),
        ("prediction", lambda p: (p + 1) % 5, r"written prediction \d, found \d"),
        ("prediction", lambda p: 5, r"written prediction 5, but there are 5 classes"),
        ("runner_up", lambda _: -1, r"written runner-up -1, but that is no other class"),
        ("radius", lambda _: math.nan, r"written radius nan, expected a number"),
        ("radius", lambda _: None, r"written radius inf, expected a number"),
        ("radius", lambda _: 1e7, r"written radius 10000000, but at most"),
        ("rounding", lambda _: -1e9, r"written rounding -1000000000.0, expected a number"),
        ("rounding", lambda r: 2 * r + 1e-3, r"written radius .*, but at most .* can be certified"),
        ("margin", lambda _: math.nan, r"written margin nan, expected a number"),
    ],
)
def test_false_records_are_noticed(
    written: tuple[Path, Path, torch.Tensor], name: str, change, message: str
) -> None:
    records, weights, images = written
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    largest = max(range(len(rows)), key=lambda i: rows[i]["radius"])
    rows[largest][name] = change(rows[largest][name])
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    result = verify(records, weights, images, torch.arange(12) % 5, sample=12)
    assert len(result.problems) == 1
    assert re.search(message, result.problems[0])
    assert result.problems[0].startswith(f"image {largest}:")


def test_images_that_are_counted_twice_are_noticed(written: tuple[Path, Path, torch.Tensor]) -> None:
    records, weights, images = written
    header, *rows = records.read_text().splitlines()
    records.write_text("\n".join([header, rows[3], *rows[:3], rows[3]]))
    assert verify(records, weights, images, sample=1).problems == ("image 3: written 2 times",)
    records.write_text("\n".join([header, json.dumps(json.loads(rows[0]) | {"index": -1})]))
    with pytest.raises(ArgumentError, match="labels: the records point beyond the 12 images"):
        verify(records, weights, images, torch.arange(12) % 5)
    with pytest.raises(ArgumentError, match="images: expected at least"):
        verify(records, weights, images)


def test_no_record_vouches_for_itself(written: tuple[Path, Path, torch.Tensor]) -> None:
    """A rounding that would cover everything excuses nothing."""
    records, weights, images = written
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    forged = [
        row | {"rounding": 1e9, "radius": 1000.0, "prediction": (row["prediction"] + 1) % 5} for row in rows
    ]
    records.write_text("\n".join(map(json.dumps, [header, *forged])))
    assert len(verify(records, weights, images, sample=12).problems) == 12


def test_nobody_can_forge_around_the_sample(written: tuple[Path, Path, torch.Tensor]) -> None:
    records, weights, images = written
    known = verify(records, weights, images, sample=4, seed=0).checked
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    forged = [row if row["index"] in known else row | {"radius": 1000.0} for row in rows]
    records.write_text("\n".join(map(json.dumps, [header, *forged])))
    assert verify(records, weights, images, sample=4, seed=0).agrees
    # A sample that meets no forged row has a chance of 1 in 495; all of three such, of 1 in 10^8.
    assert not all(verify(records, weights, images, sample=4).agrees for _ in range(3))


@pytest.mark.parametrize("factor", [1 - 1e-6, 0.99, 0.5, 0.025, math.nan])
def test_a_bound_that_is_too_small_is_noticed(
    written: tuple[Path, Path, torch.Tensor], factor: float
) -> None:
    """Also where all radii fit to it."""
    records, weights, images = written
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    header["lipschitz"] *= factor
    rows = [row | {"radius": row["radius"] / factor} for row in rows]
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    result = verify(records, weights, images, sample=12)
    assert any("is what can be proved" in problem for problem in result.problems)


def test_the_proof_is_held_against_the_second_implementation(
    written: tuple[Path, Path, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, weights, images = written
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    header["lipschitz"] = 0.1
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    wrong = SimpleNamespace(lipschitz=0.1)
    monkeypatch.setattr("lipcert.certify.verify.exact_network", lambda *_: wrong)
    result = verify(records, weights, images, sample=12)
    assert any("two images are pulled apart" in problem for problem in result.problems)


def test_float32_certificates_are_verified_too(written: tuple[Path, Path, torch.Tensor]) -> None:
    records, weights, images = written
    cert = lc.certify(lc.load(weights), images, precision="float32")
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    header |= {"precision": cert.precision, "lipschitz": cert.lipschitz}
    for i, row in enumerate(rows):
        row |= {name: getattr(cert, name)[i].item() for name in ("margin", "rounding", "radius")}
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    result = verify(records, weights, images, sample=12)
    assert result.agrees, result.problems
    assert 0 < result.margin_difference < 1e-5


def test_what_cannot_be_verified_is_refused(written: tuple[Path, Path, torch.Tensor], tmp_path: Path) -> None:
    records, weights, images = written
    with pytest.raises(ArgumentError, match="images: expected at least 12"):
        verify(records, weights, images[:3], sample=12)
    with pytest.raises(ArgumentError, match="sample: expected at least 1, got 0"):
        verify(records, weights, images, sample=0)
    with pytest.raises(CheckpointError, match="no records that can be read"):
        verify(tmp_path / "nothing.jsonl", weights, images)
    lc.save(network("bcop"), weights)
    with pytest.raises(CheckpointError, match="holds other weights than those"):
        verify(records, weights, images)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"not a network that lipcert\.save wrote"):
        read_network(tmp_path / "empty.safetensors")


def test_one_huge_logit_does_not_widen_the_check_of_the_others(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.head.bias[4] = -1e9  # type: ignore[union-attr, index]  # a class that is masked out
    lc.save(model, tmp_path / "m.safetensors")
    images = torch.rand(12, *SHAPE)
    cert = lc.certify(model, images)

    def lines(**changes: torch.Tensor) -> Path:
        header = {"weights_sha256": network_hash(model), "lipschitz": cert.lipschitz, "precision": "float64"}
        columns = {
            name: changes.get(name, getattr(cert, name))
            for name in ("prediction", "runner_up", "margin", "rounding", "radius")
        }
        rows = [
            {"index": i, "label": 0, **{name: c[i].item() for name, c in columns.items()}} for i in range(12)
        ]
        (tmp_path / FILE).write_text("\n".join(map(json.dumps, [header, *rows])))
        return tmp_path / FILE

    weights = tmp_path / "m.safetensors"
    assert verify(lines(), weights, images, sample=12).agrees
    assert not verify(lines(radius=cert.radius + 1e-3), weights, images, sample=12).agrees
    swapped = lines(prediction=cert.runner_up, runner_up=cert.prediction)
    assert len(verify(swapped, weights, images, sample=12).problems) == 12


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (3, {"bound": 0.001}, r"image 2: written bound 0.001, but that of the file is"),
        (3, {"precision": "exact"}, r"image 2: written precision 'exact', but that of the file is 'float64'"),
        (0, {"model": {"depth": 50}}, r"the records describe another network"),
    ],
)
def test_what_records_say_twice_is_the_same(
    line: int, change: dict[str, object], message: str, written: tuple[Path, Path, torch.Tensor]
) -> None:
    records, weights, images = written
    lines = [json.loads(text) for text in records.read_text().splitlines()]
    lines[line] |= change
    records.write_text("\n".join(map(json.dumps, lines)))
    problems = verify(records, weights, images, sample=1).problems
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_the_written_network_may_be_the_right_one(written: tuple[Path, Path, torch.Tensor]) -> None:
    records, weights, images = written
    header, *rows = (json.loads(text) for text in records.read_text().splitlines())
    header["model"] = vars(network().config)
    rows[0] |= {"bound": header["lipschitz"], "precision": "float64"}
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    assert verify(records, weights, images).agrees


@pytest.mark.parametrize(("more", "factor", "problems"), [(0.0, 1.0, 0), (1e-5, 1.0, 12), (0.0, 1.001, 1)])
def test_false_float32_records_are_noticed(
    written: tuple[Path, Path, torch.Tensor], more: float, factor: float, problems: int
) -> None:
    """The rounding that was taken off is about 1e-5: no radius may use up what it stands for."""
    records, weights, images = written
    cert = lc.certify(lc.load(weights), images, precision="float32")
    header, *rows = [json.loads(line) for line in records.read_text().splitlines()]
    header |= {"precision": "float32", "lipschitz": cert.lipschitz / factor}
    for i, row in enumerate(rows):
        row |= {n: getattr(cert, n)[i].item() for n in ("prediction", "runner_up", "margin", "rounding")}
        row["radius"] = cert.radius[i].item() * factor + more
    records.write_text("\n".join(map(json.dumps, [header, *rows])))
    assert len(verify(records, weights, images, sample=12).problems) == problems
