"""Networks that ship with the package: weights, a proved file and a card (JSON) each."""

from pathlib import Path

FOLDER = Path(__file__).parent
PROVED = ".proved.safetensors"


def networks() -> dict[str, Path]:
    """The files of weights, by name: what training can start from."""
    files = sorted(FOLDER.glob("*.safetensors"))
    return {file.stem: file for file in files if not file.name.endswith(PROVED)}


def proved_networks() -> dict[str, Path]:
    """The proved files, by name: what certifies."""
    return {file.name.removesuffix(PROVED): file for file in sorted(FOLDER.glob(f"*{PROVED}"))}
