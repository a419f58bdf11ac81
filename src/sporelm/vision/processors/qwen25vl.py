"""The image processor of Qwen2.5-VL: that of Qwen2-VL."""

from sporelm.vision.processors.qwen2vl import from_folder, from_metadata

__all__ = ["from_folder", "from_metadata"]
