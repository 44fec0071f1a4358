"""An exported network under onnxruntime, and certificates from its logits and what is stored beside them."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lipcert.certify.certificates import Certificates, certificates_from
from lipcert.certify.curve import shown_bound
from lipcert.certify.images import as_batch, check_images
from lipcert.errors import ArgumentError, CheckpointError, import_extra
from lipcert.export.graph import INPUT, OUTPUT
from lipcert.export.metadata import SEAL, Metadata, is_intact

if TYPE_CHECKING:
    from lipcert.certify.images import Images

BATCH = 256


class OnnxClassifier:
    """A network that `export_onnx` wrote.

    Attributes:
        metadata: what the file states: bounds, rounding, names of the classes, ...
    """

    def __init__(self, content: bytes, name: str) -> None:
        if SEAL in content and not is_intact(content):
            raise CheckpointError(
                f"{name}: has been changed since it was written (its hash does not fit); export the network "
                "again"
            )
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
        """Predictions with their radii, from the logits and the numbers that the file states.

        Guarantee: measured, so `proved` is False. The pair bounds, as stated by the file, are proved for the
        network in float64; what float32 arithmetic may add was measured when the file was written.

        Args:
            images: as `lipcert.certify` takes them. Pixels that float32 does not hold are rounded, and the
                radius is that much smaller.
        """
        batch, about = self._batch(images), self.metadata
        single = batch.float()
        logits = torch.from_numpy(run(self._session, single.numpy()))
        slack = torch.full((len(logits),), about.rounding, dtype=torch.float64, device="cpu")
        bounds = torch.from_numpy(about.pair_bounds)
        found = certificates_from(logits, bounds, slack, about.lipschitz, proved=False)
        moved = torch.linalg.vector_norm((batch.double() - single.double()).flatten(1), dim=1)
        return dataclasses.replace(found, radius=(found.radius - moved).clamp(min=0))

    def _batch(self, images: "Images") -> torch.Tensor:
        batch = as_batch(images, self.metadata.input_shape)
        check_images(batch, self.metadata.input_shape)
        return batch.detach().cpu()

    def __repr__(self) -> str:
        about = self.metadata
        return (
            f"OnnxClassifier({self._name!r}, images of shape {about.input_shape}, {len(about.classes)} "
            f"classes, bound {shown_bound(about.lipschitz)} as stated by the file)"
        )


def load(path: str | os.PathLike[str]) -> OnnxClassifier:
    """Read a network that `export_onnx` wrote, to run it with onnxruntime on the CPU.

    Any byte that was changed after writing is noticed by a hash. That is no signature: who makes a file can
    state any bound in it, and nothing in it can be proved again without the network it was made from.

    Args:
        path: the .onnx file.

    Raises:
        ArgumentError: onnxruntime is not installed.
        CheckpointError: no such file, a changed or damaged one, one of an older format, or one that lipcert
            did not write.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    return OnnxClassifier(content, str(path))


def session(content: bytes) -> Any:
    """A session of onnxruntime on the CPU, where float32 products are not shortened."""
    runtime = import_extra("onnxruntime", "onnx", "export")
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
