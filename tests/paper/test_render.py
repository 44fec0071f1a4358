"""The writers on a small sheet with every awkward character."""

import csv
import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from lipcert.errors import ArgumentError
from lipcert.paper.render import Sheet, comma_separated, html, latex, markdown, terminal, write

SHEET = Sheet(
    name="small",
    title="50% of <everything> & more",
    columns=("Architecture", "Method", "Source", "36/255"),
    lines=(
        ("LipConvnet-5", "+ HH", "paper", "60.12"),
        ("LipConvnet-5", "+ HH", "measured", "39.60 ± 0.10"),
        ("LipConvnet-5", "+ CR", "paper", "6"),
        ("LipConvnet-10", "+ CR", "paper", "a|b_c"),
    ),
    notes=("seed_0 & [red]seed 1[/red]",),
)


def test_repeated_labels_are_blank_and_new_architectures_are_marked() -> None:
    assert list(SHEET.printed()) == [
        (True, ("LipConvnet-5", "+ HH", "paper", "60.12")),
        (False, ("", "", "measured", "39.60 ± 0.10")),
        (False, ("", "+ CR", "paper", "6")),
        (True, ("LipConvnet-10", "+ CR", "paper", "a|b_c")),
    ]


def test_markdown() -> None:
    assert markdown(SHEET) == (
        "**50% of <everything> & more**\n\n"
        "| Architecture | Method | Source | 36/255 |\n"
        "| --- | --- | --- | --- |\n"
        "| LipConvnet-5 | + HH | paper | 60.12 |\n"
        "|  |  | measured | 39.60 ± 0.10 |\n"
        "|  | + CR | paper | 6 |\n"
        "| LipConvnet-10 | + CR | paper | a\\|b_c |\n"
        "\nseed_0 & [red]seed 1[/red]\n"
    )


def test_latex_escapes_and_rules() -> None:
    text = latex(SHEET)
    assert "\\caption{50\\% of \\textless{}everything\\textgreater{} \\& more}" in text
    assert " &  & measured & 39.60 $\\pm$ 0.10 \\\\\n" in text
    assert "a|b\\_c" in text
    assert text.count("\\midrule") == 2  # below the head, and between the two architectures
    assert text.count("{") == text.count("}")


def test_csv_repeats_every_label() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(SHEET))))
    assert rows == [list(SHEET.columns), *map(list, SHEET.lines)]


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data.strip()


def test_html_holds_the_same_cells_escaped() -> None:
    parser = Cells()
    parser.feed(html(SHEET).split("<ul>")[0])
    assert parser.cells == [*SHEET.columns, *(cell for _, line in SHEET.printed() for cell in line)]
    assert "<everything>" not in html(SHEET)


def test_terminal_prints_text_as_it_is() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal(SHEET))
    text = console.export_text()
    assert "39.60 ± 0.10" in text
    assert "a|b_c" in text


def test_write_makes_all_four_files(tmp_path: Path) -> None:
    paths = write(SHEET, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["small.md", "small.tex", "small.csv", "small.html"]
    assert paths[0].read_text(encoding="utf-8") == markdown(SHEET)


def test_a_short_line_is_refused() -> None:
    with pytest.raises(ArgumentError, match="lines: expected 2 cells in each line of x, got 1"):
        Sheet("x", "x", ("a", "b"), (("only",),))


def test_long_repeated_text_is_a_letter_in_print_and_whole_in_csv() -> None:
    lines = (("5", "1.00", "", ""), ("5", "2.00", "0", "five epochs"), ("10", "3.00", "0, 1", "five epochs"))
    sheet = Sheet(
        "x", "t", ("Depth", "Value", "Seeds", "Budget"), lines, ("n",), labels=1, folded=("Seeds", "Budget")
    )
    assert sheet.fold().lines == (("5", "1.00", ""), ("5", "2.00", "A"), ("10", "3.00", "B"))
    assert sheet.fold().notes == ("A: seeds 0; five epochs.", "B: seeds 0, 1; five epochs.", "n")
    assert "| 10 | 3.00 | B |" in markdown(sheet)
    assert '10,3.00,"0, 1",five epochs' in comma_separated(sheet)
