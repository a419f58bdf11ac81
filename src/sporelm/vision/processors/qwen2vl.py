"""The image processor of Qwen2-VL: pictures keep their aspect ratio, and their sides become whole merged patches.

Source: transformers' models/qwen2_vl/image_processing_pil_qwen2_vl.py; for mmproj files, llama.cpp's
tools/mtmd/clip.cpp.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.engine.tower_runner import MAX_ROWS
from sporelm.errors import ModelFileError, RequestError
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.pixels import BICUBIC, normalize, resize
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    CLIP_MEAN,
    CLIP_STD,
    MEAN_KEY,
    STD_KEY,
    metadata_normalization,
    metadata_values,
    read_filter,
    read_normalization,
    read_processor_files,
    require_resizing,
    settings_json,
)

IMAGE_PAD: Final = "<|image_pad|>"
MAX_RATIO: Final = 200  # maximum aspect ratio
MAX_PIXELS: Final = 1 << 31
MIN_KEY, MAX_KEY = "clip.vision.image_min_pixels", "clip.vision.image_max_pixels"
MTMD_ROWS: Final = (8, 4096)  # llama.cpp's defaults for the minimum and maximum number of rows of a picture
SIZE_KEYS: Final = ("shortest_edge", "longest_edge", "min_pixels", "max_pixels")
DEFAULT_PIXELS: Final = (56 * 56, 28 * 28 * 1280)


@dataclass(frozen=True, kw_only=True)
class QwenSettings:
    """The settings of the image processors of Qwen's vision models.

    patch, merge             sides of a patch, in pixels, and of the square of patches that are merged
    frames                   frames of a patch; a still picture is repeated
    min_pixels, max_pixels   bounds of the resized picture
    scale, mean, std         pixels become (pixel * scale - mean) / std
    resample                 Pillow's number of the filter
    """

    patch: int
    merge: int
    frames: int
    min_pixels: int
    max_pixels: int
    scale: float = BYTE_SCALE
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    resample: int = BICUBIC

    def metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings as metadata of an mmproj file, under full keys."""
        return {
            MEAN_KEY: ("[f32]", list(self.mean)),
            STD_KEY: ("[f32]", list(self.std)),
            MIN_KEY: ("u32", self.min_pixels),
            MAX_KEY: ("u32", self.max_pixels),
        }


class QwenProcessor(ImageProcessor):
    """One row stands for a square of merged patches. `max_pixels` is limited to the patches that a tower accepts;
    larger pictures are downscaled."""

    placeholder = IMAGE_PAD
    row_token = IMAGE_PAD
    prompt_text = f"<|vision_start|>{IMAGE_PAD}<|vision_end|>"

    def __init__(self, settings: QwenSettings) -> None:
        self.settings = settings
        self.max_pixels = min(settings.max_pixels, MAX_ROWS * settings.patch**2)

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        settings = self.settings
        height, width = self._resized(pixels.shape[0], pixels.shape[1])
        values = normalize(
            resize(pixels, height, width, settings.resample), settings.mean, settings.std, settings.scale
        )
        grid = (1, height // settings.patch, width // settings.patch)
        patches = cut_merged_patches(values, settings.patch, settings.merge, settings.frames)
        num_rows = len(patches) // settings.merge**2
        return ProcessedImage(self.row_token * num_rows, (ImageInput(patches, (grid,), num_rows),))

    def count_rows(self, width: int, height: int) -> int:
        height, width = self._resized(height, width)
        return height * width // (self.settings.patch * self.settings.merge) ** 2

    def to_metadata(self) -> dict[str, MetadataEntry]:
        return self.settings.metadata()

    def to_files(self) -> dict[str, dict[str, Any]]:
        settings = self.settings
        values = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": settings.patch,
            "merge_size": settings.merge,
            "temporal_patch_size": settings.frames,
            # Both spellings: older versions of transformers read the first.
            "min_pixels": settings.min_pixels,
            "max_pixels": settings.max_pixels,
            "size": {"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels},
            **settings_json(settings),
        }
        return {"preprocessor_config.json": values}

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        unit = self.settings.patch * self.settings.merge
        return fit_pixels(height, width, unit, self.settings.min_pixels, self.max_pixels)


def fit_pixels(height: int, width: int, unit: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return (height, width) as multiples of `unit`, with pixels within the bounds, at about the same ratio.

    Raises RequestError if one side is more than MAX_RATIO times the other. Source: `smart_resize` of transformers.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"image: the aspect ratio is too extreme (got {width}x{height}; allowed {MAX_RATIO}:1). Crop it."
        )

    def scaled(factor: float, rounded: Callable[[float], int]) -> tuple[int, int]:
        return rounded(height * factor / unit) * unit, rounded(width * factor / unit) * unit

    found = round(height / unit) * unit, round(width / unit) * unit
    if found[0] * found[1] > max_pixels:
        shrink = sqrt(height * width / max_pixels)
        return max(unit, floor(height / shrink / unit) * unit), max(unit, floor(width / shrink / unit) * unit)
    if found[0] * found[1] < min_pixels:
        return scaled(sqrt(min_pixels / (height * width)), ceil)
    return found


def cut_merged_patches(pixels: NDArray[np.float32], patch: int, merge: int, frames: int) -> NDArray[np.float32]:
    """Return the patches of a picture [channels, height, width]: float32 [patches, channels * frames * patch ** 2].

    The patches of a square of `merge` by `merge` are adjacent, and the squares row-major. The values of a patch are in
    the order (channel, frame, y, x); all frames are equal.
    """
    channels, height, width = pixels.shape
    down, across = height // patch // merge, width // patch // merge
    parts = pixels.reshape(channels, down, merge, patch, across, merge, patch).transpose(1, 4, 2, 5, 0, 3, 6)
    repeated = np.broadcast_to(parts[:, :, :, :, :, None], (*parts.shape[:5], frames, patch, patch))
    return repeated.reshape(-1, channels * frames * patch**2)


def read_pixel_bounds(values: ConfigValues, default: tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and maximum pixels of a resized picture: `min_pixels` and `max_pixels`, or in "size", which
    calls them `shortest_edge` and `longest_edge`. Raises ModelFileError for another size, and for a minimum above the
    maximum."""
    size = values.get("size")
    if size is not None and not (isinstance(size, Mapping) and any(name in size for name in SIZE_KEYS)):
        raise ModelFileError(
            f"{values.where}: size is {format_value(size)}; it must be an object with {' and '.join(SIZE_KEYS[:2])}"
        )
    inner = ConfigValues(size if isinstance(size, Mapping) else {}, f"{values.where}: size")
    bounds = []
    for key, edge, fallback in zip(
        ("min_pixels", "max_pixels"), ("shortest_edge", "longest_edge"), default, strict=True
    ):
        source, name = (values, key) if values.has(key) else (inner, edge if inner.has(edge) else key)
        bounds.append(source.integer(name, 1, MAX_PIXELS, fallback))
    if bounds[0] > bounds[1]:
        raise ModelFileError(f"{values.where}: the minimum of {bounds[0]} pixels is above the maximum of {bounds[1]}")
    return bounds[0], bounds[1]


def check_same(values: ConfigValues, key: str, tower: int) -> None:
    """Raise ModelFileError if a processor's setting differs from the tower's value."""
    if values.integer(key, 1, MAX_PIXELS, tower) != tower:
        raise ModelFileError(f"{values.where}: {key} is {values.get(key)}, but the vision tower takes {tower}")


def from_folder(folder: Path, config: TowerConfig, tokens: Any) -> QwenProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError for a missing or impossible value,
    UnsupportedModel for an unsupported option."""
    values = read_processor_files(folder).image
    require_resizing(values)
    for key, of_tower in (
        ("patch_size", config.patch),
        ("merge_size", config.merge),
        ("temporal_patch_size", config.frames),
    ):
        check_same(values, key, of_tower)
    scale, mean, std = read_normalization(values, CLIP_MEAN, CLIP_STD)
    least, most = read_pixel_bounds(values, DEFAULT_PIXELS)
    return QwenProcessor(
        QwenSettings(
            patch=config.patch,
            merge=config.merge,
            frames=config.frames,
            min_pixels=least,
            max_pixels=most,
            scale=scale,
            mean=mean,
            std=std,
            resample=read_filter(values, BICUBIC),
        )
    )


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, tokens: Any) -> QwenProcessor:
    """Return the processor of an mmproj file. Without bounds in the file, llama.cpp's defaults apply.

    Raises ModelFileError for a missing or impossible value.
    """
    values, area = metadata_values(metadata), (config.patch * config.merge) ** 2
    mean, std = metadata_normalization(metadata)
    least, most = (
        values.integer(key, 1, MAX_PIXELS, rows * area) for key, rows in zip((MIN_KEY, MAX_KEY), MTMD_ROWS, strict=True)
    )
    return QwenProcessor(
        QwenSettings(
            patch=config.patch,
            merge=config.merge,
            frames=config.frames,
            min_pixels=least,
            max_pixels=most,
            mean=mean,
            std=std,
        )
    )
