"""lipcert export: a network as ONNX, for programs that do not run Python or torch."""

from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.class_names import class_names
from lipcert.cli.console import print_json, say
from lipcert.cli.network import find_network
from lipcert.cli.options import Weights, Zoo

EXAMPLES = """
Examples:

lipcert export runs/a --onnx model.onnx

lipcert export runs/a --weights last --onnx last.onnx --json

lipcert export --zoo lipconvnet5-cifar10 --onnx cifar10.onnx
"""


def export(
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write.")],
    named: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run, or a .safetensors file.")
    ] = None,
    zoo: Zoo = None,
    weights: Weights = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Write the frozen network as ONNX in plain operators, with what certifies its predictions again."""
    source = find_network(named, zoo, weights)

    from lipcert.certify.curve import shown_bound
    from lipcert.export import export_onnx
    from lipcert.models.storage import load

    network = load(source.file)
    written = export_onnx(network, onnx, classes=class_names(source, network.config.num_classes))
    if as_json:
        print_json(
            {
                "onnx": str(written.path),
                "bytes": written.size,
                "lipschitz": written.lipschitz,
                "difference": written.difference,
                "input_shape": list(network.config.input_shape),
                "classes": network.config.num_classes,
            }
        )
        return
    say(
        f"{written.path}: {written.size / 1e6:.1f} MB, plain operators, batches of any length of images "
        f"{network.config.input_shape}"
    )
    say(
        f"Proved Lipschitz bound {shown_bound(written.lipschitz)}, stored in it with the distances between "
        "classes"
    )
    say(f"Its float32 logits differ from float64 by at most {written.difference:.1e} on trial images")
    say(f'Certify with it: lc.export.load("{written.path}").certify(images), measured and not proved')


export.__doc__ = f"{export.__doc__}\n{EXAMPLES}"
