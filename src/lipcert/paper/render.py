"""A finished table of strings, written for the terminal and as Markdown, LaTeX, CSV or HTML."""

import csv
import io
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from lipcert.errors import ArgumentError
from lipcert.files import write_atomically

Line = tuple[str, ...]

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem;color:#1b1b1b;background:#fff}
table{border-collapse:collapse}caption{text-align:left;font-weight:600;padding:.5rem 0}
th,td{padding:.15rem .7rem;text-align:left;font-variant-numeric:tabular-nums}
thead th{border-bottom:2px solid currentColor}tr.first td{border-top:1px solid #bbb}
li{max-width:60rem}
@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}tr.first td{border-color:#555}}"""


@dataclass(frozen=True)
class Sheet:
    """One table, ready to be written.

    Args:
        name: stem of the files that `write` makes.
        title: caption.
        columns: names of the columns.
        lines: the cells; every line has one per column.
        notes: sentences below the table.
        labels: how many leading columns name the row; in print a label that repeats the one above is blank.
        folded: columns with long, repeated text; in print a letter stands for it, explained below the table.
    """

    name: str
    title: str
    columns: Line
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    labels: int = 2
    folded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line) != len(self.columns):
                raise ArgumentError(
                    f"lines: expected {len(self.columns)} cells in each line of {self.name}, got {len(line)}"
                )

    def fold(self) -> "Sheet":
        """The sheet for print: the folded columns as one of letters, what they stand for among the notes.

        >>> sheet = Sheet("x", "x", ("Row", "Budget"), (("a", "five epochs"), ("b", "")), folded=("Budget",))
        >>> sheet.fold().lines, sheet.fold().notes
        ((('a', 'A'), ('b', '')), ('A: five epochs.',))
        """
        if not self.folded:
            return self
        places = [self.columns.index(name) for name in self.folded]
        kept = [place for place in range(len(self.columns)) if place not in places]
        letters: dict[str, str] = {"": ""}
        lines = []
        for line in self.lines:
            text = "; ".join(
                line[place] if name == self.folded[-1] else f"{name.lower()} {line[place]}"
                for name, place in zip(self.folded, places, strict=True)
                if line[place]
            )
            letter = letters.setdefault(text, _letter(len(letters) - 1))
            lines.append((*(line[place] for place in kept), letter))
        columns = (*(self.columns[place] for place in kept), self.folded[-1])
        legend = tuple(f"{letter}: {text}." for text, letter in letters.items() if text)
        return replace(self, columns=columns, lines=tuple(lines), notes=(*legend, *self.notes), folded=())

    def printed(self) -> Iterator[tuple[bool, Line]]:
        """Lines with repeated labels blank, each with whether it begins a new first label."""
        above: Line = ("",) * self.labels
        for line in self.lines:
            labels = line[: self.labels]
            pairs = enumerate(zip(above, labels, strict=True))
            kept = next((index for index, (old, new) in pairs if old != new), self.labels)
            yield bool(self.labels) and kept == 0, ("",) * kept + line[kept:]
            above = labels


def _letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ...

    >>> _letter(0), _letter(25), _letter(26), _letter(701), _letter(702)
    ('A', 'Z', 'AA', 'ZZ', 'AAA')
    """
    front, last = divmod(number, 26)
    return (_letter(front - 1) if front else "") + string.ascii_uppercase[last]


def terminal(sheet: Sheet) -> RichTable:
    """The sheet for a rich console."""
    sheet = sheet.fold()
    table = RichTable(
        title=sheet.title,
        title_justify="left",
        caption="\n".join(sheet.notes) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    for place, column in enumerate(sheet.columns):
        # Numbers and short words stay whole in a narrow terminal; text gives way.
        longest = max((line[place] for line in sheet.lines), key=len, default="")
        short = len(longest) <= 10
        table.add_column(
            Text(column),
            no_wrap=short,
            overflow="fold",
            min_width=max(len(longest), len(column)) if short else None,
        )
    for first, line in sheet.printed():
        if first and table.row_count:
            table.add_section()
        table.add_row(*map(Text, line))
    return table


def markdown(sheet: Sheet) -> str:
    """The sheet as a GitHub table below its title."""
    sheet = sheet.fold()
    lines = [sheet.columns, ("---",) * len(sheet.columns), *(line for _, line in sheet.printed())]
    body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    notes = "".join(f"\n{note}\n" for note in sheet.notes)
    return f"**{sheet.title}**\n\n{body}\n{notes}"


def latex(sheet: Sheet) -> str:
    """The sheet as a LaTeX table; needs the package booktabs."""
    sheet = sheet.fold()
    body: list[str] = []
    for first, line in sheet.printed():
        if first and body:
            body.append(r"\midrule")
        body.append(_latex_line(line))
    notes = "".join(f"\n\\par\\smallskip\\footnotesize {_latex_text(note)}" for note in sheet.notes)
    head, rows = _latex_line(sheet.columns), "\n".join(body)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{_latex_text(sheet.title)}}}\n"
        f"\\begin{{tabular}}{{{'l' * len(sheet.columns)}}}\n\\toprule\n{head}\n\\midrule\n"
        f"{rows}\n\\bottomrule\n\\end{{tabular}}{notes}\n\\end{{table}}\n"
    )


def comma_separated(sheet: Sheet) -> str:
    """The sheet as CSV: every cell filled, no notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([sheet.columns, *sheet.lines])
    return text.getvalue()


def html(sheet: Sheet) -> str:
    """The sheet as a page of its own that needs nothing else."""
    sheet = sheet.fold()
    head = "".join(f"<th scope='col'>{escape(column)}</th>" for column in sheet.columns)
    rows = "\n".join(
        f"<tr{' class=first' if first else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>"
        for first, line in sheet.printed()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in sheet.notes)
    return (
        f"<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{escape(sheet.title)}</title>\n"
        f"<style>{_STYLE}</style>\n<table><caption>{escape(sheet.title)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n<ul>{notes}</ul></html>\n"
    )


def write(sheet: Sheet, folder: Path) -> tuple[Path, ...]:
    """Write the sheet as `<name>.md`, `.tex`, `.csv` and `.html` into `folder`; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"md": markdown, "tex": latex, "csv": comma_separated, "html": html}
    paths = []
    for ending, make in texts.items():
        path = folder / f"{sheet.name}.{ending}"
        write_atomically(path, make(sheet).encode())
        paths.append(path)
    return tuple(paths)


def _latex_line(line: Line) -> str:
    return " & ".join(map(_latex_text, line)) + r" \\"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
