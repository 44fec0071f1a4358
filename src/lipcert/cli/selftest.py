"""lipcert selftest: the contract of every layer on this machine, as a report for a bug report."""

import platform
from typing import TYPE_CHECKING

from lipcert.cli.console import say
from lipcert.cli.options import Device
from lipcert.errors import BrokenCertificateError

if TYPE_CHECKING:
    import torch


def selftest(
    device: Device = "auto",
) -> None:
    """Check on this machine that every layer keeps its contract, and print a report to paste.

    Each layer is run on the device and held against its operator in float64 on the CPU, its bound against a
    dense Jacobian, its training against tensors that have no numbers. Exits with 1 if something fails.

    Examples:

    lipcert selftest

    lipcert selftest --device cuda
    """
    from lipcert.cli.places import pick_device
    from lipcert.nn.selftest import selftest as run

    chosen = pick_device(device)
    for line in environment(chosen):
        say(line)
    failed = checks = 0
    for report in run(chosen):
        say(str(report))
        checks += len(report.findings)
        failed += sum(not finding.passed for finding in report.findings)
    if failed:
        raise BrokenCertificateError(
            f"{failed} of {checks} checks failed on {chosen}; please report it with the lines above"
        )
    say(f"{checks} checks passed on {chosen}")


def environment(device: "torch.device") -> list[str]:
    """Versions, processor and device, one per line."""
    from importlib.metadata import version

    import torch

    from lipcert.machine import cpu_model

    lines = [
        " ".join(f"{name} {version(name)}" for name in ("lipcert", "torch", "numpy")),
        f"Python {platform.python_version()} on {platform.platform()}",
        f"{cpu_model()}, {torch.get_num_threads()} threads",
    ]
    if device.type == "cuda":
        lines.append(f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
    return [*lines, f"device {device}"]
