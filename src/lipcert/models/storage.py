"""Save and load: one safetensors file that carries its own description; nothing in it is ever executed."""

import dataclasses
import hashlib
import json
import os
from difflib import get_close_matches
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from lipcert import zoo
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import write_or_explain
from lipcert.models import compact as compacting
from lipcert.models.lipconvnet import LipConvnet, LipConvnetConfig, lipconvnet
from lipcert.nn.normalize import Normalize
from lipcert.nn.wrappers import unwrap

FORMAT = 1
KEY = "lipcert"


def save(model: nn.Module, path: str | os.PathLike[str], *, compact: bool = False) -> None:
    """Write a network to one .safetensors file: its tensors, and as JSON what is needed to build it again.

    The file appears complete or not at all: it is written beside its place, flushed to the disk and renamed.

    Args:
        model: a network made by `lipconvnet`, also inside a wrapper such as DDP.
        path: the file; an existing one is replaced.
        compact: round matrices to bfloat16 and keep only what is free of them, for a small file. It is
            another network then, if a similar one: certify it as it is loaded.

    Raises:
        ArgumentError: the model was not made by `lipconvnet`, or layers were exchanged since.
        CheckpointError: the folder does not exist or cannot be written to.
    """
    inner = unwrap(model)
    if type(inner) is not LipConvnet:
        raise ArgumentError(
            f"model: expected a network made by lipcert.lipconvnet, got {type(inner).__name__}; "
            "save other modules with safetensors.torch.save_file(model.state_dict(), path)"
        )
    for mine, built in zip_longest(_structure(inner), _structure(_build(inner.config))):
        if mine != built:
            raise ArgumentError(
                f"{mine or built}: is not what lipconvnet made, so the file would be read as another "
                "network; save what lipcert.prove makes of it, or its state_dict"
            )
    header = {
        "format": FORMAT,
        "lipcert": version("lipcert"),
        "model": "lipconvnet",
        "config": dataclasses.asdict(inner.config),
        "compact": compact,
    }
    tensors = (
        compacting.compact(inner)
        if compact
        # A copy each: safetensors refuses tensors that layers share.
        else {name: t.detach().cpu().contiguous().clone() for name, t in inner.state_dict().items()}
    )
    write_or_explain(Path(path), to_bytes(tensors, {KEY: json.dumps(header)}))


def load(path: str | os.PathLike[str]) -> LipConvnet:
    """Read a network that `save` wrote, on the CPU and in evaluation mode; draws no random numbers.

    Args:
        path: the file, or the name of a network that ships with the package.

    Raises:
        CheckpointError: no such file or name, a damaged or foreign file, or tensors that are missing, extra
            or of another shape (all of them are named).
    """
    file = _locate(path)
    header, tensors = _read(file)
    config = _config(file, header)
    try:
        _refuse_larger_than(sum(t.numel() for t in tensors.values()), len(tensors), config)
        model = _build(config)
    except (ArgumentError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file}: describes a network that cannot be built ({error})") from error
    _fill(file, model, compacting.expand(model, tensors) if header.get("compact") else tensors)
    return model.eval()


def weights_hash(model: LipConvnet) -> str:
    """SHA-256 that names trainable weights: the config and all tensors, in the order of their names."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(model.config), sort_keys=True).encode())
    for name, value in sorted(model.state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def _build(config: LipConvnetConfig) -> LipConvnet:
    """A network of these settings on the CPU; the global random numbers are left as they are."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return lipconvnet(**dataclasses.asdict(config))


def _structure(model: LipConvnet) -> list[str]:
    """Path, class and arguments of every module; those of a normalisation are tensors, which a file holds."""
    return [
        f"{path or 'model'}: {type(m).__module__}.{type(m).__name__}"
        + ("" if type(m) is Normalize else f"({m.extra_repr()})")
        for path, m in model.named_modules(remove_duplicate=False)
    ]


def _refuse_larger_than(numbers: int, tensors: int, config: LipConvnetConfig) -> None:
    """Raise before a network is built that its file cannot fill: building it could take all memory."""
    widest = config.width * 2**config.stages
    first = 4 * config.in_channels if config.conv in ("soc", "bcop") else 0
    least = max(widest**2 // 8, first**2 // 8, config.in_channels, config.features * config.num_classes // 8)
    if config.depth > 5 * max(tensors, 1) or least > numbers:
        raise ValueError(
            f"its {numbers} numbers are too few for depth {config.depth}, width {config.width}, images of "
            f"{config.input_shape} and {config.num_classes} classes"
        )


def _locate(path: str | os.PathLike[str]) -> Path:
    """The file itself, or that of the zoo's network of this name."""
    if Path(path).is_file():
        return Path(path)
    shipped = zoo.networks()
    if str(path) in shipped:
        return shipped[str(path)]
    if Path(path).is_dir():
        raise CheckpointError(
            f"{path}: expected a .safetensors file, got a folder; of a run that is its best.safetensors"
        )
    near = get_close_matches(str(path), shipped, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise CheckpointError(f"{path}: no such file, and no network of this name ships with lipcert{hint}")


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(KEY)
            # Copies: what safetensors gives is the file itself, and would change with it.
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or a truncated one ({error})") from error
    if text is None:
        raise CheckpointError(f"{file}: a safetensors file, but not one that lipcert.save wrote")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{file}: its description is damaged ({error})") from error
    if not isinstance(header, dict) or header.get("model") != "lipconvnet":
        raise CheckpointError(f"{file}: describes no network that this version knows")
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{file}: has format {header.get('format')}, this version reads {FORMAT}; "
            f"use lipcert {header.get('lipcert')} or newer"
        )
    return header, tensors


def _config(file: Path, header: dict[str, Any]) -> LipConvnetConfig:
    config: Any = header.get("config")
    known = {field.name for field in dataclasses.fields(LipConvnetConfig)}
    given = set(config) if isinstance(config, dict) else set()
    if given != known:
        raise CheckpointError(
            f"{file}: its description lacks or adds settings: {', '.join(sorted(known ^ given))}"
        )
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    return LipConvnetConfig(**settings)


def _fill(file: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put the tensors into the model in the precision they were saved in, or name all that do not fit."""
    expected = model.state_dict()
    problems = []
    if missing := sorted(expected.keys() - tensors.keys()):
        problems.append(f"missing {', '.join(missing)}")
    if extra := sorted(tensors.keys() - expected.keys()):
        problems.append(f"extra {', '.join(extra)}")
    for name in sorted(expected.keys() & tensors.keys()):
        if expected[name].is_floating_point() != tensors[name].is_floating_point():
            problems.append(f"{name} expected {expected[name].dtype}, got {tensors[name].dtype}")
    try:
        # Shapes are the layers' own business: some buffers take theirs from the first training step.
        model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        problems += [line.strip().rstrip(".") for line in str(error).splitlines()[1:]]
    if problems:
        raise CheckpointError(f"{file}: does not fit the network that it describes: {'; '.join(problems)}")
