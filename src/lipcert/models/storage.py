"""Save and load: one safetensors file that carries its own description; nothing in it is ever executed."""

import dataclasses
import hashlib
import json
import os
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import write_or_explain
from lipcert.models import compact as compacting
from lipcert.models.lipconvnet import LipConvnet, LipConvnetConfig
from lipcert.models.liresnet import LiResNet, LiResNetConfig
from lipcert.models.network import Network, NetworkConfig
from lipcert.nn.carried import carried_vectors, complete_state
from lipcert.nn.normalize import Normalize
from lipcert.nn.wrappers import unwrap
from lipcert.schema import build, parse_json

FORMAT = 1
KEY = "lipcert"
CONFIGS: dict[str, type[NetworkConfig]] = {
    config.architecture: config for config in (LipConvnetConfig, LiResNetConfig)
}
"""Descriptions that a file may hold, by the name of their builder."""


def is_described(model: nn.Module) -> TypeGuard[Network]:
    """Whether a builder of lipcert made the model, so that weights and config describe it completely."""
    return type(model) in (LipConvnet, LiResNet)


def save(model: nn.Module, path: str | os.PathLike[str], *, compact: bool = False) -> None:
    """Write a network to one .safetensors file: its tensors, and as JSON what is needed to build it again.

    The file appears complete or not at all: it is written beside its place, flushed to the disk and renamed.

    Args:
        model: a network made by `lipconvnet` or `liresnet`, also inside a wrapper such as DDP.
        path: the file; an existing one is replaced.
        compact: round matrices to bfloat16 and keep only what is free of them, for a small file. It is
            another network then, if a similar one: certify it as it is loaded.

    Raises:
        ArgumentError: the model was made by no builder, layers were exchanged since, or its tensors are
            sparse or meta.
        CheckpointError: the folder does not exist or cannot be written to.
    """
    inner = unwrap(model)
    check_dense(inner)
    if not is_described(inner):
        raise ArgumentError(
            "model: expected a network made by lipcert.lipconvnet or lipcert.liresnet, got "
            f"{type(inner).__name__}; save other modules with "
            "safetensors.torch.save_file(model.state_dict(), path)"
        )
    for mine, built in zip_longest(_structure(inner), _structure(_build(inner.config))):
        if mine != built:
            raise ArgumentError(
                f"{mine or built}: is not what {inner.config.architecture} made, so the file would be read "
                "as another network; save what lipcert.prove makes of it, or its state_dict"
            )
    header = {
        "format": FORMAT,
        "lipcert": version("lipcert"),
        "model": inner.config.architecture,
        "config": dataclasses.asdict(inner.config),
        "compact": compact,
    }
    tensors = (
        compacting.compact(inner)
        if compact
        # A copy each: safetensors refuses tensors that layers share.
        else {name: t.detach().cpu().contiguous().clone() for name, t in complete_state(inner).items()}
    )
    write_or_explain(Path(path), to_bytes(tensors, {KEY: json.dumps(header)}))


def load(path: str | os.PathLike[str]) -> Network:
    """Read a network that `save` wrote, on the CPU and in evaluation mode; draws no random numbers.

    Raises:
        CheckpointError: no such file, a damaged or foreign one, or tensors that are missing, extra, of
            another shape (all of them are named) or not finite.
    """
    file = Path(path)
    header, tensors = _read(file)
    config = _config(file, header)
    try:
        _refuse_larger_than(sum(t.numel() for t in tensors.values()), len(tensors), config)
        model = _build(config)
    except (ArgumentError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file}: describes a network that cannot be built ({error})") from error
    _fill(file, model, compacting.expand(model, tensors) if header.get("compact") else tensors)
    return model.eval()


def check_dense(model: nn.Module) -> None:
    """Raise an ArgumentError that names a tensor of `model` without plain numbers in it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided or tensor.is_meta:
            raise ArgumentError(
                f"model: expected dense tensors with numbers in them, got {name}, which is sparse or meta"
            )


def read_config(path: str | os.PathLike[str]) -> NetworkConfig:
    """What a file that `save` wrote says about its network, which is not built.

    Raises:
        CheckpointError: no such file, or a damaged or foreign one.
    """
    return _config(Path(path), _read(Path(path), with_tensors=False)[0])


def weights_hash(model: Network) -> str:
    """SHA-256 that names trainable weights: the config and all tensors, in the order of their names."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(model.config), sort_keys=True).encode())
    for name, value in sorted(complete_state(model).items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def _build(config: NetworkConfig) -> Network:
    """A network of these settings on the CPU; the global random numbers are left as they are."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return config.build()


def _structure(model: Network) -> list[str]:
    """Path, class and arguments of every module; those of a normalisation are tensors, which a file holds."""
    return [
        f"{path or 'model'}: {type(m).__module__}.{type(m).__name__}"
        + ("" if type(m) is Normalize else f"({m.extra_repr()})")
        for path, m in model.named_modules(remove_duplicate=False)
    ]


def _refuse_larger_than(numbers: int, tensors: int, config: NetworkConfig) -> None:
    """Raise for a config too large for its file, before the network is built and takes all memory."""
    if config.depth > 5 * max(tensors, 1) or config.least_numbers > numbers:
        raise ValueError(
            f"its {numbers} numbers are too few for depth {config.depth}, width {config.width}, images of "
            f"{config.input_shape} and {config.num_classes} classes"
        )


def _read(file: Path, *, with_tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(KEY)
            # Copies: what safetensors gives is the file itself, and would change with it.
            names = list(content.keys()) if with_tensors else []
            tensors = {name: content.get_tensor(name).clone() for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or a truncated one ({error})") from error
    if text is None:
        raise CheckpointError(f"{file}: a safetensors file, but not one that lipcert.save wrote")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{file}: its description is damaged ({error})") from error
    if not isinstance(header, dict) or header.get("model") not in [*CONFIGS]:
        raise CheckpointError(f"{file}: describes no network that this version knows")
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{file}: has format {header.get('format')}, this version reads {FORMAT}; "
            f"use lipcert {header.get('lipcert')} or newer"
        )
    return header, tensors


def _config(file: Path, header: dict[str, Any]) -> NetworkConfig:
    kind, config = CONFIGS[header["model"]], header.get("config")
    known = {field.name for field in dataclasses.fields(kind)}
    given = set(config) if isinstance(config, dict) else set()
    if given != known:
        raise CheckpointError(
            f"{file}: its description lacks or adds settings: {', '.join(sorted(known ^ given))}"
        )
    try:
        built: NetworkConfig = build(kind, config)
    except (ArgumentError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file}: describes a network that cannot be built ({error})") from error
    return built


def _fill(file: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put the tensors into the model in the precision they were saved in, or name all that do not fit."""
    expected = model.state_dict()
    problems = []
    if missing := sorted(expected.keys() - tensors.keys()):
        problems.append(f"missing {', '.join(missing)}")
    if extra := sorted(tensors.keys() - expected.keys() - carried_vectors(model).keys()):
        problems.append(f"extra {', '.join(extra)}")
    expected |= carried_vectors(model)
    for name in sorted(expected.keys() & tensors.keys()):
        if expected[name].is_floating_point() != tensors[name].is_floating_point():
            problems.append(f"{name} expected {expected[name].dtype}, got {tensors[name].dtype}")
        elif not bool(tensors[name].isfinite().all()):
            problems.append(f"{name} has numbers that are not finite")
    try:
        model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        problems += [line.strip().rstrip(".") for line in str(error).splitlines()[1:]]
    if problems:
        raise CheckpointError(f"{file}: does not fit the network that it describes: {'; '.join(problems)}")
