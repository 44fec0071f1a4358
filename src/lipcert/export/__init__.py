"""Networks for other runtimes: ONNX files that carry what is needed to certify their predictions again."""

from lipcert.export.classifier import OnnxClassifier, load
from lipcert.export.onnx_file import export_onnx

__all__ = ["OnnxClassifier", "export_onnx", "load"]
