"""The image processor of Gemma 3: a picture stretched to the tower's size, and optional crops of it (pan and scan).

Source: transformers' image_processing_pil_gemma3.py and processing_gemma3.py. (llama.cpp's mtmd pads pictures that are
not square, and adds no line breaks around them.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import ModelFileError
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.gemma3 import Gemma3TowerConfig
from sporelm.vision.fixed_size import FixedSizeSettings, metadata_settings, read_settings, tile_input
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage
from sporelm.vision.pixels import BILINEAR, Pixels
from sporelm.vision.processor_files import HALF, MAX_SIDE, read_processor_files
from sporelm.vision.token_names import read_token

BEGIN, ROW, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
MAX_CROPS: Final = 64
ORIGINAL: Final = "Here is the original image {} and here are some crops to help you see better {}"


@dataclass(frozen=True)
class PanAndScan:
    """The rule by which crops of a long picture follow it.

    min_side    pixels of the shorter side of a crop
    max_crops   of one picture
    min_ratio   of the longer side to the shorter one
    """

    min_side: int = 256
    max_crops: int = 4
    min_ratio: float = 1.2

    def boxes(self, height: int, width: int) -> list[tuple[slice, slice]]:
        """Return the rows and the columns of each crop; none for a picture that is nearly square or too small."""
        long, short = max(height, width), min(height, width)
        if long / short < self.min_ratio:
            return []
        count = min(self.max_crops, max(2, min(floor(long / self.min_side), floor(long / short + 0.5))))
        side = ceil(long / count)
        if min(side, short) < self.min_side:
            return []
        cuts = [slice(first, min(first + side, long)) for first in range(0, long, side)]
        return [(slice(0, height), cut) if width >= height else (cut, slice(0, width)) for cut in cuts]


@dataclass(frozen=True)
class Gemma3Tokens:
    """The special tokens before a picture, for each of its rows, and after it."""

    begin: str = BEGIN
    row: str = ROW
    end: str = END


class Gemma3Processor(ImageProcessor):
    """One tile for a picture and for each of its crops, between line breaks."""

    def __init__(
        self,
        settings: FixedSizeSettings,
        config: Gemma3TowerConfig,
        crops: PanAndScan | None = None,
        tokens: Gemma3Tokens | None = None,
    ) -> None:
        tokens = tokens or Gemma3Tokens()
        self.settings, self.config, self.crops = settings, config, crops
        self.placeholder, self.row_token = tokens.begin, tokens.row
        self.run = f"\n\n{tokens.begin}{tokens.row * config.tile_outputs}{tokens.end}\n\n"

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        boxes = self._boxes(*pixels.shape[:2])
        pictures: list[Pixels] = [pixels, *(pixels[rows, columns] for rows, columns in boxes)]
        images = (tile_input(self.settings.apply(each), self.config, self.config.tile_outputs) for each in pictures)
        text = ORIGINAL.format(self.run, " ".join([self.run] * len(boxes))) if boxes else self.run
        return ProcessedImage(text, tuple(images))

    def count_rows(self, width: int, height: int) -> int:
        return self.config.tile_outputs * (1 + len(self._boxes(height, width)))

    def to_metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings that an mmproj file stores, under full keys."""
        return self.settings.to_metadata()

    def to_files(self) -> dict[str, dict[str, Any]]:
        rows = {"image_seq_length": self.config.tile_outputs}
        crops = {
            "do_pan_and_scan": self.crops is not None,
            **({} if self.crops is None else pan_and_scan_json(self.crops)),
        }
        values = {**self.settings.to_json("Gemma3ImageProcessor"), **rows, **crops}
        return {
            "preprocessor_config.json": values,
            "processor_config.json": {"processor_class": "Gemma3Processor", **rows},
        }

    def _boxes(self, height: int, width: int) -> list[tuple[slice, slice]]:
        return self.crops.boxes(height, width) if self.crops else []


def pan_and_scan_json(rule: PanAndScan) -> dict[str, Any]:
    """Return the rule as keys of preprocessor_config.json."""
    return {
        "pan_and_scan_min_crop_size": rule.min_side,
        "pan_and_scan_max_num_crops": rule.max_crops,
        "pan_and_scan_min_ratio_to_activate": rule.min_ratio,
    }


def read_pan_and_scan(values: ConfigValues) -> PanAndScan | None:
    """Return the rule for crops; None if they are disabled."""
    if not values.flag("do_pan_and_scan", False):
        return None
    usual = PanAndScan()
    return PanAndScan(
        values.integer("pan_and_scan_min_crop_size", 1, MAX_SIDE, usual.min_side),
        values.integer("pan_and_scan_max_num_crops", 1, MAX_CROPS, usual.max_crops),
        values.number("pan_and_scan_min_ratio_to_activate", 0.0, 1e6, usual.min_ratio),
    )


def from_folder(folder: Path, config: TowerConfig, has_token: Callable[[str], bool]) -> Gemma3Processor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError, UnsupportedModel."""
    assert isinstance(config, Gemma3TowerConfig)
    files = read_processor_files(folder)
    rows = files.processor.integer("image_seq_length", 1, MAX_SIDE, config.tile_outputs)
    if rows != config.tile_outputs:
        raise ModelFileError(
            f"{files.processor.where}: image_seq_length is {rows}; the vision tower returns {config.tile_outputs} rows"
        )
    settings = read_settings(files.image, config, crops=False, resample=BILINEAR, mean=HALF, std=HALF)
    texts = (read_token(folder, f"{name}_token", text) for name, text in (("boi", BEGIN), ("image", ROW), ("eoi", END)))
    return Gemma3Processor(settings, config, read_pan_and_scan(files.image), Gemma3Tokens(*texts))


def from_metadata(
    metadata: Mapping[str, Any], config: TowerConfig, has_token: Callable[[str], bool]
) -> Gemma3Processor:
    """Return the processor of an mmproj file. Raises ModelFileError for missing or impossible values."""
    assert isinstance(config, Gemma3TowerConfig)
    return Gemma3Processor(metadata_settings(metadata, config, resample=BILINEAR), config)
