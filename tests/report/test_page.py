"""report.html: says what the records say, needs no network, trusts no name."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lipcert as lc
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import read_records
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.report.page import Comparison, near_one, option_differences, render
from lipcert.report.plots.curve import Reported
from lipcert.report.words import facts
from lipcert.runs.run import Run

from .conftest import write_audit

MakeRun = Callable[..., Path]


class Balance(HTMLParser):
    """Counts what is opened and not closed, and collects what leads out of the page."""

    void = frozenset({"meta", "img", "br", "use", "path", "rect", "stop"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def check(page: str) -> Balance:
    """A page that a browser takes without guessing, and that asks no other machine for anything."""
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    for link in parser.links:
        assert link.startswith("data:") or (link[0] == "#" and link[1:] in parser.ids), link
    assert not re.search(r"https?:|@import|//[a-z]", page)
    assert "<script" not in page
    return parser


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_page_of_one_run(make_run: MakeRun) -> None:
    page = render([Run.at(make_run())])
    check(page)
    text = words(page)
    for part in (
        "classifies 75.0% of 8 hand made test images correctly; for 50.0% it is proved",
        "75.00 50.00 37.50 25.00",
        "No certificate broke.",
        "1,234 points were classified again",
        "1.020 times as far away",
        "proved to be at most 4",
        "body.stage1.conv1 SOC SkewPolynomial 4×2×2",
        "lipcert train --out x",
        "a &lt;CPU&gt;",
        "&lt;b&gt;dog&lt;/b&gt;",
        "What the activations learned",
        "SHA-256",
    ):
        assert part in text, part
    assert "<b>dog</b>" not in page


def test_page_shows_images_only_if_they_are_the_same(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, images: "object"
) -> None:
    folder = make_run()
    assert "so none is shown" in words(render([Run.at(folder)]))
    monkeypatch.setattr("lipcert.runs.run.load_test_images", lambda *_, **__: images)
    page = render([Run.at(folder)])
    check(page)
    assert page.count("data:image/png;base64,") == 8
    assert "taken for" in page
    header, *lines = (folder / "certificates.jsonl").read_text().splitlines()
    changed = json.loads(header) | {"data_sha256": "0" * 64}
    (folder / "certificates.jsonl").write_text("\n".join([json.dumps(changed), *lines]) + "\n")
    assert "so none is shown" in words(render([Run.at(folder)]))


def test_page_without_audit_metrics_and_network(make_run: MakeRun) -> None:
    folder = make_run(audited=False)
    for name in ("metrics.jsonl", "config.toml", "environment.json", "best.proved.safetensors"):
        (folder / name).unlink()
    page = render([Run.at(folder)])
    check(page)
    assert "No audit yet" in words(page)
    assert 'id="training"' not in page
    assert 'id="activations"' not in page


def test_broken_certificates_are_loud(make_run: MakeRun, outcomes: Outcomes) -> None:
    folder = make_run()
    write_audit(folder, outcomes, broken=2)
    text = words(render([Run.at(folder)]))
    assert "2 of 6 certificates are broken." in text
    assert "No certificate broke" not in text


def test_an_audit_of_something_else_says_nothing(make_run: MakeRun) -> None:
    folder = make_run()
    summary = json.loads((folder / "audit.json").read_text())
    assert Run.at(folder).audit is not None
    (folder / "audit.json").write_text(json.dumps(summary | {"network_sha256": "other"}))
    assert Run.at(folder).audit is None


def test_papers_row_stands_beside(make_run: MakeRun) -> None:
    run = Run.at(make_run())
    paper = Reported(
        "paper, table 2", {"standard": 75.78, "36/255": 59.18, "72/255": 42.01, "108/255": 27.09}
    )
    page = render([run], {"run": Comparison(paper, "5 epochs, width 16")})
    check(page)
    assert "paper, table 2 75.78 59.18 42.01 27.09 as reported; this run: 5 epochs, width 16" in words(page)
    assert "crosses the reported numbers" in page


def test_comparison_of_runs(make_run: MakeRun) -> None:
    runs = [Run.at(make_run("a", lr=0.1)), Run.at(make_run("b", lr=0.5, audited=False))]
    page = render(runs)
    check(page)
    text = words(page)
    assert "2 runs side by side" in text
    assert "lr 0.1 0.5" in text
    assert "not certified on the same images" not in text
    assert option_differences(runs) == [("lr", ["0.1", "0.5"])]


def test_same_name_twice_is_refused(make_run: MakeRun) -> None:
    run = Run.at(make_run())
    with pytest.raises(ArgumentError, match="distinct names, got run, run"):
        render([run, run])
    with pytest.raises(ArgumentError, match="got none"):
        render([])


def test_records_round_trip(make_run: MakeRun, outcomes: Outcomes) -> None:
    records = read_records(make_run())
    assert (records.outcomes.radius == outcomes.radius).all()
    assert (records.outcomes.label == outcomes.label).all()
    assert records.header.lipschitz == pytest.approx(4.0, rel=1e-9)
    assert records.network_file.is_file()


def test_the_bound_of_every_operator_is_on_the_page(make_run: MakeRun, network: lc.ProvedNetwork) -> None:
    page = render([Run.at(make_run())])
    for leaf in network.layers:
        assert (
            f'class="mono">{leaf.path}</th><td>{leaf.layer}</td><td>{type(leaf.operator).__name__}</td>'
            in page
        )
    assert near_one(network.layers[1].lipschitz) in page


def test_another_network_than_the_certified_one_is_refused(make_run: MakeRun) -> None:
    folder = make_run()
    lc.prove(lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)).save(
        folder / "best.proved.safetensors"
    )
    with pytest.raises(CheckpointError, match="is another network than the certified one"):
        render([Run.at(folder)])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("certificates.jsonl", None, "has no certificates yet; run `lipcert certify"),
        ("certificates.jsonl", "", "certificates.jsonl is damaged"),
        (
            "certificates.jsonl",
            '{"format": "other"}\n',
            "expected the format 'lipcert certificates 2', got 'other'",
        ),
        ("certificates.jsonl", "{", "certificates.jsonl is damaged"),
        ("audit.json", "{}", "audit.json is damaged"),
        ("config.toml", "= 3", "config.toml is damaged"),
        ("environment.json", "{", "environment.json is damaged"),
        ("best.proved.safetensors", "x", "not a proved network, or a damaged one"),
    ],
)
def test_damaged_files_are_named(make_run: MakeRun, name: str, content: str | None, message: str) -> None:
    folder = make_run()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        render([Run.at(folder)])


def test_the_best_run_is_bold_also_beside_a_better_publication(make_run: MakeRun) -> None:
    runs = [Run.at(make_run("a", lr=0.1)), Run.at(make_run("b", lr=0.5))]
    paper = Reported("paper", dict.fromkeys(("standard", "36/255", "72/255", "108/255"), 100.0))
    page = render(runs, {"a": Comparison(paper)})
    assert page.count('class="number best"') == 8  # equal runs: both, in four columns


def test_constants_that_are_not_close_to_one_are_printed_whole() -> None:
    assert (near_one(1.005), near_one(1.0625)) == ("1 + 5.0e-03", "1.0625")


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(104.0, "a-net, trained for 104 epochs, SHA-256 ab12"), (None, "a-net, SHA-256 ab12"), ("random", None)],
)
def test_what_a_run_started_from_is_among_its_facts(
    make_run: MakeRun, epochs: object, told: str | None
) -> None:
    folder = make_run()
    environment = json.loads((folder / "environment.json").read_text())
    if epochs != "random":
        environment["started_from"] = {"network": "a-net", "weights_sha256": "ab12", "epochs": epochs}
    (folder / "environment.json").write_text(json.dumps(environment))
    assert dict(facts(Run.at(folder))).get("Started from") == told
