"""What an audit writes: numbers by hand, JSON that any reader takes, old counter-examples removed."""

import json
import math
from pathlib import Path

import pytest
import torch

from lipcert.attacks.report import RATIO_EDGES, AuditRecord, AuditReport, counter_example
from lipcert.errors import ArgumentError, BrokenCertificateError


def record(index: int, radius: float, distance: float | None, broken: bool = False) -> AuditRecord:
    ratio = distance / radius if distance is not None and 0 < radius < math.inf else None
    found, attack = (None, None) if distance is None else (1, "pgd")
    return AuditRecord(index, 0, radius, distance, ratio, found, attack, broken)


def report_of(*records: AuditRecord) -> AuditReport:
    examples = [counter_example(r, torch.zeros(1, 2, 2), torch.ones(1, 2, 2)) for r in records if r.broken]
    return AuditReport(records, tuple(examples), {"precision": "float64"}, tried=10, inside=4, seconds=1.25)


def test_the_summary_by_hand() -> None:
    report = report_of(record(0, 1.0, 1.005), record(1, 0.5, 1.0), record(2, 0.0, 0.1), record(3, 0.2, None))
    summary = report.summary()
    assert summary["images"] == 4
    assert summary["certified"] == 3
    assert summary["found"] == 3
    assert summary["broken"] == 0
    assert summary["points_tried"] == 10
    assert summary["points_inside"] == 4
    assert summary["ratio"]["smallest"] == 1.005
    assert summary["ratio"]["median"] == pytest.approx((1.005 + 2) / 2)
    assert summary["nearest_by_attack"] == {"pgd": 3}
    assert summary["precision"] == "float64"
    assert repr(report) == "AuditReport(3 certificates, 0 broken, nearest attack at 1.005 times the radius)"


@pytest.mark.parametrize(
    ("ratio", "bin_"),
    [(0.9, 0), (1.0, 1), (1.0099, 1), (1.01, 2), (10.0, len(RATIO_EDGES)), (99.0, len(RATIO_EDGES))],
)
def test_a_ratio_of_an_edge_belongs_above_it(ratio: float, bin_: int) -> None:
    counts = report_of(record(0, 1.0, ratio)).histogram()["counts"]
    assert sum(counts) == 1
    assert counts[bin_] == 1


def test_a_report_is_plain_json(tmp_path: Path) -> None:
    report = report_of(record(0, math.inf, None), record(1, 0.5, 1.0))
    paths = report.write(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["audit.jsonl", "audit.json"]

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in paths[0].read_text().splitlines()]
    assert [line["radius"] for line in lines] == [None, 0.5]
    assert json.loads(paths[1].read_text(), parse_constant=refuse) == report.summary()


def test_counter_examples_of_an_earlier_audit_are_removed(tmp_path: Path) -> None:
    report_of(record(7, 1.0, 0.5, broken=True)).write(tmp_path)
    assert (tmp_path / "broken-7.safetensors").exists()
    report_of(record(3, 1.0, 0.5, broken=True)).write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.json",
        "audit.jsonl",
        "broken-3.safetensors",
    ]


def test_the_worst_is_named() -> None:
    report = report_of(record(0, 1.0, 0.9, True), record(1, 1.0, 0.25, True), record(2, 1.0, 2.0))
    with pytest.raises(
        BrokenCertificateError,
        match=r"2 of 3 .* broken: image 1, certified to 1, changes from class 0 to 1 at distance 0\.25",
    ):
        report.check()
    report_of(record(0, 1.0, 2.0)).check()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="out: cannot make the folder"):
        report_of().write(tmp_path / "file" / "folder")
