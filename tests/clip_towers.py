"""Towers with the ViT of CLIP or SigLIP for tests of their processors: only sizes matter there."""

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.models.vit_tower import VitConfig

Config = TypeVar("Config", bound=VitConfig)
NEEDS_TRANSFORMERS = "transformers is not installed: pip install 'sporelm[live]' compares live"
SIZES = [(1, 1), (300, 1), (2, 211), (37, 53), (120, 80), (42, 42), (19, 20)]  # (width, height)


def tower_config(kind: type[Config], image_size: int, patch: int = 14, **fields: Any) -> Config:
    """The configuration of a tower for pictures of this size."""
    shape: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "vocab": 1}
    rest: dict[str, Any] = {"context_length": 1, "eps": 1e-6, "rope_theta": 0.0, "name": "", "architecture": ""}
    return kind(model="", patch=patch, image_size=image_size, out_width=8, **{**shape, **rest, **fields})


def write_settings(folder: Path, values: dict[str, Any], **processor: Any) -> Path:
    """The files of a processor."""
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def noise(width: int, height: int) -> NDArray[np.uint8]:
    """A picture of random pixels."""
    return np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)


def any_token(text: str) -> bool:
    """A tokenizer that has all tokens."""
    return True
