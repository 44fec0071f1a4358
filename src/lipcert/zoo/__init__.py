"""Networks that ship with the package: weights, a proved file, its certificates and a card (JSON) each."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROVED = ".proved.safetensors"
CERTIFICATES = ".certificates.jsonl.gz"


def networks() -> dict[str, Path]:
    """The files of weights, by name: what training can start from."""
    files = sorted(FOLDER.glob("*.safetensors"))
    return {file.stem: file for file in files if not file.name.endswith(PROVED)}


def proved_networks() -> dict[str, Path]:
    """The proved files, by name: what certifies."""
    return {file.name.removesuffix(PROVED): file for file in sorted(FOLDER.glob(f"*{PROVED}"))}


def certificates() -> dict[str, Path]:
    """The records of the test images, by name: what `lipcert verify` checks."""
    files = sorted(FOLDER.glob(f"*{CERTIFICATES}"))
    return {file.name.removesuffix(CERTIFICATES): file for file in files}


def card(name: str) -> dict[str, Any]:
    """The card of a network: its training, accuracies and audit; {} if it has none."""
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
