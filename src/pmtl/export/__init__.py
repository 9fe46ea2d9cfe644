"""Models out of a run: ONNX, torch.export and safetensors files, each with a model card."""

from pmtl.export.folder import Exported, export_model

__all__ = ["Exported", "export_model"]
