"""An exported network under onnxruntime, and certificates from its logits and what is stored beside them."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lipcert.certify.curve import shown_bound
from lipcert.certify.images import as_batch
from lipcert.certify.radii import Certificates, certify_logits, check_images
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.export.graph import INPUT, OUTPUT, need_runtime
from lipcert.export.metadata import Metadata

if TYPE_CHECKING:
    from lipcert.certify.images import Images

BATCH = 256


class OnnxClassifier:
    """A network that `export_onnx` wrote.

    Attributes:
        metadata: the bound, the distances of the head's rows, the names of the classes, ...
    """

    def __init__(self, content: bytes, name: str) -> None:
        try:
            self._session = session(content)
        except ArgumentError:
            raise
        except Exception as error:
            # onnxruntime has a type of its own for each way a file can be damaged.
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{name}: not an ONNX file, or a damaged one ({reason})") from error
        self._name = name
        self.metadata = Metadata.from_properties(self._session.get_modelmeta().custom_metadata_map, file=name)

    def logits(self, images: "Images") -> npt.NDArray[np.float32]:
        """Logits (N, K) of images as `lipcert.certify` takes them, in float32."""
        return run(self._session, self._batch(images).float().numpy())

    def certify(self, images: "Images") -> Certificates:
        """Predictions with their radii, from the logits and the stored numbers.

        Guarantee: measured. The bound and the distances are proved for the network in float64; what float32
        arithmetic may add was measured when the file was written. `proved` is False.

        Args:
            images: as `lipcert.certify` takes them. Pixels that float32 does not hold are rounded, and the
                radius is that much smaller.
        """
        batch = self._batch(images)
        single = batch.float()
        logits = torch.from_numpy(run(self._session, single.numpy()))
        slack = torch.full(logits.shape, self.metadata.rounding, dtype=torch.float64, device="cpu")
        found = certify_logits(
            logits, torch.from_numpy(self.metadata.distances), self.metadata.lipschitz, slack, "float32"
        )
        moved = torch.linalg.vector_norm((batch.double() - single.double()).flatten(1), dim=1)
        return dataclasses.replace(found, radius=(found.radius - moved).clamp(min=0))

    def _batch(self, images: "Images") -> torch.Tensor:
        shape = self.metadata.input_shape
        batch = as_batch(images, shape)
        check_images(nn.Identity(), batch)
        if tuple(batch.shape[1:]) != shape:
            raise ArgumentError(
                f"images: expected images of shape {shape}, which {self._name} was made for, "
                f"got {tuple(batch.shape[1:])}"
            )
        return batch.detach().cpu()

    def __repr__(self) -> str:
        about = self.metadata
        return (
            f"OnnxClassifier({self._name!r}, images of shape {about.input_shape}, {len(about.classes)} "
            f"classes, proved bound {shown_bound(about.lipschitz)})"
        )


def load(path: str | os.PathLike[str]) -> OnnxClassifier:
    """Read a network that `export_onnx` wrote, to run it with onnxruntime on the CPU.

    Args:
        path: the .onnx file.

    Raises:
        ArgumentError: onnxruntime is not installed.
        CheckpointError: no such file, a damaged one, or one that lipcert did not write.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    return OnnxClassifier(content, str(path))


def session(content: bytes) -> Any:
    """A session of onnxruntime on the CPU, where float32 products are not shortened."""
    runtime = need_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(onnx_session: Any, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Logits (N, K), some images at a time."""
    parts = [
        onnx_session.run([OUTPUT], {INPUT: images[start : start + BATCH]})[0]
        for start in range(0, max(len(images), 1), BATCH)
    ]
    return np.concatenate(parts)
