"""A graph of plain ONNX operators, built node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lipcert.errors import import_extra
from lipcert.operators.operator import Shape

OPSET, IR_VERSION = 17, 8
"""Of 2022: old enough for the runtimes that are in use, new enough for every operator here."""

INPUT, OUTPUT = "pixels", "logits"


class Graph:
    """Nodes and constants; values are passed around by name. Real numbers are stored in float32.

    The torch exporters are not used: one of them needs another package, the other is deprecated, and neither
    exports autograd functions that write into views.
    """

    def __init__(self) -> None:
        self.onnx = import_extra("onnx", "onnx", "export")
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._names: dict[tuple[bytes, tuple[int, ...]], str] = {}

    def add(self, operator: str, inputs: Sequence[str], attributes: dict[str, Any] | None = None) -> str:
        """Append a node with one output; returns the name of that output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            self.onnx.helper.make_node(operator, list(inputs), [name], name=name, **(attributes or {}))
        )
        return name

    def numbers(self, value: Tensor | npt.NDArray[Any] | float) -> str:
        """A constant of real numbers; equal ones are stored once."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return self._constant(array.astype(np.float32))

    def per_channel(self, values: Tensor, shape: Shape) -> str:
        """A constant of one number per channel, for samples of this shape."""
        return self.numbers(values.reshape(1, -1, *(1 for _ in shape[1:])))

    def integers(self, values: Sequence[int]) -> str:
        """A constant vector of integers: a shape, axes, places."""
        return self._constant(np.array(values, dtype=np.int64))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Give every sample another shape; the batch axis stays, however long it is."""
        # 0 copies the axis; -1 would have to be found by division, which an empty batch does not allow.
        return self.add("Reshape", [x, self.integers([0, *shape])])

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        """x[..., start:stop, ...] along one axis."""
        return self.add("Slice", [x, *(self.integers([v]) for v in (start, stop, axis))])

    def halves(self, x: str, channels: int) -> tuple[str, str]:
        """The first and the second half of the channels."""
        half = channels // 2
        return self.cut(x, 1, 0, half), self.cut(x, 1, half, channels)

    def finish(self, result: str, input_shape: Shape, num_classes: int) -> Any:
        """The model, for batches of any length."""
        helper, real = self.onnx.helper, self.onnx.TensorProto.FLOAT
        self.nodes.append(helper.make_node("Identity", [result], [OUTPUT], name=OUTPUT))
        graph = helper.make_graph(
            self.nodes,
            "lipcert",
            [helper.make_tensor_value_info(INPUT, real, ["batch", *input_shape])],
            [helper.make_tensor_value_info(OUTPUT, real, ["batch", num_classes])],
            initializer=list(self.constants.values()),
        )
        return helper.make_model(
            graph,
            producer_name="lipcert",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )

    def _constant(self, array: npt.NDArray[Any]) -> str:
        key = (array.tobytes(), array.shape)
        if key not in self._names:
            name = f"constant_{len(self.constants)}"
            self._names[key] = name
            self.constants[name] = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return self._names[key]
