"""How training went: loss, and accuracy on the held-out images."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from lipcert.certify.curve import RADII
from lipcert.report.style import INK, drawing, stroke

Metrics = Sequence[Mapping[str, Any]]
"""Records of metrics.jsonl, of which those of kind "epoch" are drawn."""


def training_figure(runs: Mapping[str, Metrics]) -> Figure:
    """Two panels over the epochs. One run shows all its accuracies, several show one each, at 36/255."""
    with drawing():
        figure = Figure(figsize=(7.2, 5.0), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for position, (name, metrics) in enumerate(runs.items()):
            epochs = [record for record in metrics if record["kind"] == "epoch"]
            x = [record["epoch"] for record in epochs]
            keys = ("standard", *RADII) if len(runs) == 1 else ("36/255",)
            for offset, key in enumerate(keys):
                look = stroke(position + offset)
                above.plot(
                    x, [_percent(_better(record), key) for record in epochs],
                    color=look.colour, linestyle=look.line, marker=look.marker, markersize=4,
                    markevery=max(1, len(x) // 12), label=name if len(runs) > 1 else _label(key),
                )  # fmt: skip
            look = stroke(position)
            below.plot(x, [r["loss"] for r in epochs], color=look.colour, linestyle=look.line)
            best = [r for r in epochs if r.get("best")][-1:]
            if best:
                key = "36/255"
                above.plot(
                    [best[0]["epoch"]], [_percent(_better(best[0]), key)],
                    marker="o", markersize=12, markerfacecolor="none", markeredgecolor=INK, linestyle="",
                    label="best on held-out" if position == len(runs) - 1 else None,
                )  # fmt: skip
        title = "held-out, %" if len(runs) == 1 else "held-out, certified at 36/255, %"
        above.set(ylabel=title)
        below.set(xlabel="epoch", ylabel="training loss")
        above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        return figure


def _better(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Held-out accuracies of the weights or, if that is better, of their average."""
    found: Mapping[str, Any] = record["held_out"]
    return record.get("held_out_average", found) if record.get("better") == "average" else found


def _percent(accuracy: Mapping[str, Any], key: str) -> float:
    share = accuracy["standard"] if key == "standard" else accuracy["certified"][key]
    return 100 * float(share)


def _label(key: str) -> str:
    return key if key == "standard" else f"certified at {key}"
