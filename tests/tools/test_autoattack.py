"""The survey by AutoAttack: what is attacked, what counts, and what the table says."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.certify.curve import RADII
from lipcert.nn import ConstantHead, Flatten
from tools import autoattack


def network() -> lc.ProvedNetwork:
    """Two pixels and two classes; the certificate is the exact distance, |x - y| / sqrt(2)."""
    model = nn.Sequential(Flatten(), ConstantHead(torch.eye(2), None))
    return lc.prove(model, (1, 1, 2))


def images(*gaps: float) -> Tensor:
    """Images whose distances to the boundary are `gaps`."""
    return torch.tensor([[0.5 + gap / 2**0.5, 0.5 - gap / 2**0.5] for gap in gaps]).view(-1, 1, 1, 2)


def across(points: Tensor, labels: Tensor, radius: float) -> Tensor:
    """The best attack: straight to the boundary, as far as the radius allows."""
    direction = torch.tensor([-1.0, 1.0]).div(2**0.5).view(1, 1, 1, 2)
    return points + (1 - autoattack.SLACK) * radius * direction


def test_an_attack_is_as_good_as_the_distances_allow() -> None:
    attacked: list[tuple[int, float]] = []

    def attack(points: Tensor, labels: Tensor, radius: float) -> Tensor:
        attacked.append((len(points), radius))
        return across(points, labels, radius)

    batch = autoattack.attacked(
        network(), images(0.1, 0.2, 0.4, 0.5, -0.1), torch.zeros(5, dtype=torch.int64), attack, 100
    )
    assert batch["changed_at"] == ["36/255", "72/255", "108/255", None, None]
    assert (batch["first"], batch["prediction"]) == (100, [0, 0, 0, 0, 1])
    assert batch["radius"][:4] == pytest.approx([0.1, 0.2, 0.4, 0.5], abs=2e-6)
    # Images that are certified at a radius are not attacked at it, nor wrong ones, nor those changed before.
    assert attacked == [(1, 36 / 255), (1, 72 / 255), (1, 108 / 255)]


@pytest.mark.parametrize(
    "attack",
    [
        lambda points, labels, radius: across(points, labels, 3 * radius),
        lambda points, labels, radius: points,
    ],
    ids=["outside of the radius", "no other class"],
)
def test_points_that_do_not_count(attack: autoattack.Attack) -> None:
    batch = autoattack.attacked(network(), images(0.1), torch.tensor([0]), attack, 0)
    assert batch["changed_at"] == [None]


def test_the_table_counts_from_certified_to_standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch: autoattack.Batch = {
        "first": 0,
        "label": [0, 0, 0, 0],
        "prediction": [0, 0, 0, 1],
        "radius": [0.9, 0.1, 0.1, 0.1],
        "changed_at": [None, "72/255", None, None],
        "network_sha256": "abc",
        "seconds": 3600.0,
        "by": "a processor, 1 threads",
    }
    (tmp_path / "small.jsonl").write_text(json.dumps(batch) + "\n")
    monkeypatch.setattr(autoattack, "card_of", lambda name: {"network_sha256": "abc"})
    first, second, third = autoattack.table(tmp_path).splitlines()[2:5]
    assert first == "| `small` | 4 | 36/255 | 25.0 | 75.0 | 75.0 |"
    assert second == "|  |  | 72/255 | 25.0 | 50.0 | 75.0 |"
    assert third == "|  |  | 108/255 | 25.0 | 50.0 | 75.0 |"
    assert list(RADII) == ["36/255", "72/255", "108/255"]
    monkeypatch.setattr(autoattack, "card_of", lambda name: {"network_sha256": "def"})
    with pytest.raises(SystemExit, match="attacks another network than the one that ships"):
        autoattack.table(tmp_path)
