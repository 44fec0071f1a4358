"""report.html: says what the records say, needs no network, trusts no name."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lipcert.certify.bound_file import read_bound
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import read_records
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.report.evidence import read_evidence
from lipcert.report.page import Comparison, near_one, option_differences, render
from lipcert.report.plots.curve import Reported

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
    page = render([read_evidence(make_run())])
    check(page)
    text = words(page)
    for part in (
        "classifies 75.0% of 8 hand made test images correctly; for 50.0% it is proved",
        "75.00 50.00 37.50 25.00",
        "No certificate broke.",
        "1,234 points were classified again",
        "1.020 times as far away",
        "proved to be at most 4",
        "body.stage1.conv1 SOC 1×4×4",
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
    assert "so none is shown" in words(render([read_evidence(folder)]))
    monkeypatch.setattr("lipcert.report.evidence.load_data", lambda *_, **__: images)
    page = render([read_evidence(folder)])
    check(page)
    assert page.count("data:image/png;base64,") == 8
    assert "taken for" in page
    header, *lines = (folder / "certificates.jsonl").read_text().splitlines()
    changed = json.loads(header) | {"data_sha256": "0" * 64}
    (folder / "certificates.jsonl").write_text("\n".join([json.dumps(changed), *lines]) + "\n")
    assert "so none is shown" in words(render([read_evidence(folder)]))


def test_page_without_audit_metrics_and_bound(make_run: MakeRun) -> None:
    folder = make_run(audited=False)
    for name in ("metrics.jsonl", "bound.json", "config.toml", "environment.json", "model.safetensors"):
        (folder / name).unlink()
    page = render([read_evidence(folder)])
    check(page)
    assert "No audit yet" in words(page)
    assert 'id="training"' not in page
    assert 'id="activations"' not in page


def test_broken_certificates_are_loud(make_run: MakeRun, outcomes: Outcomes) -> None:
    folder = make_run()
    write_audit(folder, outcomes, broken=2)
    text = words(render([read_evidence(folder)]))
    assert "2 of 6 certificates are broken." in text
    assert "No certificate broke" not in text


@pytest.mark.parametrize("change", [{"weights_sha256": "other"}, {"precision": "float32"}])
def test_an_audit_of_something_else_says_nothing(make_run: MakeRun, change: dict[str, str]) -> None:
    folder = make_run()
    summary = json.loads((folder / "audit.json").read_text())
    assert read_evidence(folder).audit is not None
    (folder / "audit.json").write_text(json.dumps(summary | change))
    assert read_evidence(folder).audit is None


def test_papers_row_stands_beside(make_run: MakeRun) -> None:
    run = read_evidence(make_run())
    paper = Reported(
        "paper, table 2", {"standard": 75.78, "36/255": 59.18, "72/255": 42.01, "108/255": 27.09}
    )
    page = render([run], {"run": Comparison(paper, "5 epochs, width 16")})
    check(page)
    assert "paper, table 2 75.78 59.18 42.01 27.09 as reported; this run: 5 epochs, width 16" in words(page)
    assert "crosses the reported numbers" in page


def test_comparison_of_runs(make_run: MakeRun) -> None:
    runs = [read_evidence(make_run("a", lr=0.1)), read_evidence(make_run("b", lr=0.5, audited=False))]
    page = render(runs)
    check(page)
    text = words(page)
    assert "2 runs side by side" in text
    assert "lr 0.1 0.5" in text
    assert "not certified on the same images" not in text
    assert option_differences(runs) == [("lr", ["0.1", "0.5"])]


def test_same_name_twice_is_refused(make_run: MakeRun) -> None:
    run = read_evidence(make_run())
    with pytest.raises(ArgumentError, match="distinct names, got run, run"):
        render([run, run])
    with pytest.raises(ArgumentError, match="got none"):
        render([])


def test_records_round_trip(make_run: MakeRun, outcomes: Outcomes) -> None:
    records = read_records(make_run())
    assert (records.outcomes.radius == outcomes.radius).all()
    assert (records.outcomes.label == outcomes.label).all()
    assert records.lipschitz == 4.0
    assert records.weights_file.is_file()


def test_bound_multiplies_up_to_the_lipschitz_constant(make_run: MakeRun, network: "object") -> None:
    from lipcert.certify.exact import exact_network

    layers = read_bound(make_run())
    assert layers[0].path == "normalize"
    assert layers[-1].through == exact_network(network, (1, 4, 4)).lipschitz  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("certificates.jsonl", None, "has no certificates yet; run `lipcert certify"),
        ("certificates.jsonl", "", "certificates.jsonl is damaged"),
        (
            "certificates.jsonl",
            '{"format": "other"}\n',
            "expected format 'lipcert certificates 1', got 'other'",
        ),
        ("certificates.jsonl", "{", "certificates.jsonl is damaged"),
        ("bound.json", "[]", "bound.json is damaged"),
        ("audit.json", "{}", "audit.json is damaged"),
        ("config.toml", "= 3", "config.toml is damaged"),
        ("environment.json", "{", "environment.json is damaged"),
        ("model.safetensors", "x", "cannot be read as a network of lipcert"),
    ],
)
def test_damaged_files_are_named(make_run: MakeRun, name: str, content: str | None, message: str) -> None:
    folder = make_run()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_evidence(folder)


def test_the_best_run_is_bold_also_beside_a_better_publication(make_run: MakeRun) -> None:
    runs = [read_evidence(make_run("a", lr=0.1)), read_evidence(make_run("b", lr=0.5))]
    paper = Reported("paper", dict.fromkeys(("standard", "36/255", "72/255", "108/255"), 100.0))
    page = render(runs, {"a": Comparison(paper)})
    assert page.count('class="number best"') == 8  # equal runs: both, in four columns


def test_measured_certificates_are_not_called_proved_in_the_sentence(make_run: MakeRun) -> None:
    folder = make_run()
    header, *rows = (folder / "certificates.jsonl").read_text().splitlines()
    measured = json.dumps(json.loads(header) | {"precision": "float32"})
    (folder / "certificates.jsonl").write_text("\n".join([measured, *rows]) + "\n")
    sentence = read_evidence(folder).sentence
    assert "it is certified (rounding measured) that" in sentence
    assert "proved" not in sentence


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
    assert dict(read_evidence(folder).facts).get("Started from") == told
