"""lipcert export: a network as ONNX, for programs that do not run Python or torch."""

from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.console import print_json, say
from lipcert.cli.options import Json, Network, Weights
from lipcert.runs.naming import find_run


def export(
    named: Network,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write.")],
    weights: Weights = "best",
    as_json: Json = False,
) -> None:
    """Write the proved network as ONNX in plain operators, with what certifies its predictions again.

    Examples:

    lipcert export runs/a --onnx model.onnx

    lipcert export runs/a --weights last --onnx last.onnx --json

    lipcert export lipconvnet5-cifar10 --onnx cifar10.onnx
    """
    run = find_run(named, weights)

    from lipcert.certify.curve import shown_bound
    from lipcert.export import export_onnx

    network = run.network
    written = export_onnx(network, onnx)
    if as_json:
        print_json(
            {
                "onnx": str(written.path),
                "bytes": written.size,
                "lipschitz": written.lipschitz,
                "difference": written.difference,
                "rounding": written.rounding,
                "network_sha256": written.network_sha256,
                "input_shape": list(network.input_shape),
                "classes": len(network.classes),
            }
        )
        return
    say(
        f"{written.path}: {written.size / 1e6:.1f} MB, plain operators, batches of any length of images "
        f"{network.input_shape}"
    )
    say(
        f"Proved Lipschitz bound {shown_bound(written.lipschitz)}, stored in it with a bound for every pair "
        "of classes"
    )
    say(
        f"Its float32 logits differ from float64 by at most {written.difference:.1e} on trial images; "
        f"{written.rounding:.1e} is subtracted from every margin"
    )
    say(f'Certify with it: lc.export.load("{written.path}").certify(images), measured and not proved')
