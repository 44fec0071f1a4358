"""Networks that ship with the package: a file of weights and a card (JSON) each."""

from pathlib import Path

FOLDER = Path(__file__).parent


def networks() -> dict[str, Path]:
    """The files of weights, by name."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.safetensors"))}
