"""The image processor of MiniCPM-V: the whole picture, then its slices if it is large, at about its aspect ratio.

Source: image_processing_minicpmv.py and processing_minicpmv.py in the folders that the models' authors publish.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.minicpmv import MinicpmvTowerConfig
from sporelm.vision.image_processor import ImageProcessor, ProcessedImage, cut_patches
from sporelm.vision.pixels import BICUBIC, Pixels, normalize, resize
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    COLORS,
    HALF,
    MAX_SIDE,
    MEAN_KEY,
    STD_KEY,
    metadata_normalization,
    metadata_values,
    read_processor_files,
)

SLICES: Final = 9
SLICE: Final = 448
MAX_SLICES: Final = 100
SLICE_KEY: Final = "clip.vision.image_size"
PLACEHOLDER: Final = "(<image>./</image>)"
UNK: Final = "<unk>"
WHOLE_TAGS: Final = ("<image>", "</image>")
SLICE_TAGS: Final = ("<slice>", "</slice>")
ID_TAGS: Final = ("<image_id>", "</image_id>")
Size = tuple[int, int]  # (width, height), as the authors write sizes
Tags = tuple[str, str]


@dataclass(frozen=True)
class MinicpmvSettings:
    """The settings of a processor. Defaults are those of the authors' code.

    slices       maximum number of slices of a picture
    slice_size   a slice has about the pixels of a square with this side; larger pictures are cut
    numbers      each picture is preceded by its index in the prompt, between ID_TAGS
    """

    slices: int = SLICES
    slice_size: int = SLICE
    numbers: bool = True
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF

    def metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings that mmproj files hold, under full keys."""
        return {
            MEAN_KEY: ("[f32]", list(self.mean)),
            STD_KEY: ("[f32]", list(self.std)),
            SLICE_KEY: ("u32", self.slice_size),
        }


class Slicing(NamedTuple):
    """How a picture is cut.

    whole           (width, height) to which the whole picture is resized
    columns, rows   grid of its slices; 0: it is not cut
    refined         (width, height) of the resized picture from which slices are cut
    """

    whole: Size
    columns: int = 0
    rows: int = 0
    refined: Size = (0, 0)


class MinicpmvProcessor(ImageProcessor):
    """Writes "<unk>" once for each row of the resampler, between the tags of the picture or of a slice."""

    placeholder = PLACEHOLDER
    prompt_text = f"{PLACEHOLDER}\n"
    row_token = UNK

    def __init__(self, settings: MinicpmvSettings, config: MinicpmvTowerConfig) -> None:
        self.settings, self.patch, self.queries = settings, config.patch, config.queries
        self.has_nested_tags = config.version == 2  # MiniCPM-Llama3-V 2.5

    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        height, width = pixels.shape[:2]
        slicing = self._slicing(width, height)
        parts = [self._resize(pixels, slicing.whole)]
        if slicing.rows:
            refined = self._resize(pixels, slicing.refined)
            width, height = slicing.refined[0] // slicing.columns, slicing.refined[1] // slicing.rows
            parts += [
                refined[y * height : (y + 1) * height, x * width : (x + 1) * width]
                for y in range(slicing.rows)
                for x in range(slicing.columns)
            ]
        return ProcessedImage(self._text(slicing), tuple(self._input(part) for part in parts))

    def text_in_prompt(self, picture: ProcessedImage, number: int) -> str:
        return f"{ID_TAGS[0]}{number}{ID_TAGS[1]}{picture.text}" if self.settings.numbers else picture.text

    def count_rows(self, width: int, height: int) -> int:
        slicing = self._slicing(width, height)
        return self.queries * (1 + slicing.rows * slicing.columns)

    def to_metadata(self) -> dict[str, MetadataEntry]:
        return self.settings.metadata()

    def _slicing(self, width: int, height: int) -> Slicing:
        size, patch = self.settings.slice_size, self.patch
        grid = choose_grid(width, height, size, self.settings.slices)
        if grid is None:
            return Slicing(fit_size(width, height, size, patch))
        columns, rows = grid
        part = divisible(width, columns) / columns, divisible(height, rows) / rows
        refined = fit_size(*part, size, patch)
        return Slicing(fit_size(width, height, size, patch), columns, rows, (refined[0] * columns, refined[1] * rows))

    def _resize(self, pixels: Pixels, size: Size) -> Pixels:
        return resize(pixels, size[1], size[0], BICUBIC)

    def _input(self, pixels: Pixels) -> ImageInput:
        """Return the whole picture or a slice as the tower reads it."""
        values = normalize(pixels, self.settings.mean, self.settings.std, BYTE_SCALE)
        grid = (1, values.shape[1] // self.patch, values.shape[2] // self.patch)
        return ImageInput(cut_patches(values, self.patch), (grid,), self.queries)

    def _text(self, slicing: Slicing) -> str:
        whole = self._run(WHOLE_TAGS)
        if not slicing.rows:
            return whole
        tags = WHOLE_TAGS if self.has_nested_tags else SLICE_TAGS
        slices = "\n".join([self._run(tags) * slicing.columns] * slicing.rows)
        return f"{whole}{SLICE_TAGS[0]}{slices}{SLICE_TAGS[1]}" if self.has_nested_tags else whole + slices

    def _run(self, tags: Tags) -> str:
        return f"{tags[0]}{UNK * self.queries}{tags[1]}"


def divisible(length: float, unit: int) -> int:
    """Return the multiple of a unit that is nearest to a length, at least the unit."""
    return max(round(length / unit) * unit, unit)


def fit_size(width: float, height: float, size: int, patch: int) -> Size:
    """Return (width, height) in the ratio of a picture, with about the pixels of a square of `size`, in whole
    patches."""
    ratio = width / height
    fitted_height = int(size / sqrt(ratio))
    fitted_width = int(fitted_height * ratio)
    return divisible(fitted_width, patch), divisible(fitted_height, patch)


def choose_grid(width: int, height: int, size: int, max_slices: int) -> Size | None:
    """Return (columns, rows) of the slices of a picture: of all grids with about one slice for each square of `size`,
    the first whose ratio is nearest to that of the picture. None: the picture is not cut."""
    count = min(ceil(width * height / (size * size)), max_slices)
    if count <= 1:
        return None
    numbers = [number for number in (count - 1, count, count + 1) if 1 < number <= max_slices]
    grids = [(columns, n // columns) for n in numbers for columns in range(1, n + 1) if n % columns == 0]
    ratio = log(width / height)
    return min(grids, key=lambda grid: abs(ratio - log(grid[0] / grid[1])))


def from_folder(folder: Path, config: TowerConfig, tokens: Any) -> MinicpmvProcessor:
    """Return the processor of a Hugging Face folder. Raises ModelFileError for a missing or impossible value,
    UnsupportedModel for an unsupported option."""
    assert isinstance(config, MinicpmvTowerConfig)
    values = read_processor_files(folder).image
    if not values.flag("slice_mode", True):
        raise UnsupportedModel(f"{values.where}: slice_mode is not supported (got False; allowed True)")
    check_tags(values)
    for key, expected in (("patch_size", config.patch), ("image_feature_size", config.queries)):
        value = values.integer(key, 1, MAX_SIDE, expected)
        if value != expected:
            raise ModelFileError(f"{values.where}: {key} is {value}; that of the vision tower is {expected}")
    settings = MinicpmvSettings(
        slices=values.integer("max_slice_nums", 1, MAX_SLICES, SLICES),
        slice_size=values.integer("scale_resolution", config.patch, MAX_SIDE, SLICE),
        numbers=values.flag("use_image_id", False),
        mean=values.numbers("norm_mean", COLORS, -1e3, 1e3) if values.has("norm_mean") else HALF,
        std=values.numbers("norm_std", COLORS, 1e-6, 1e3) if values.has("norm_std") else HALF,
    )
    return MinicpmvProcessor(settings, config)


def check_tags(values: ConfigValues) -> None:
    """Raise UnsupportedModel for tags that differ from those of all published models."""
    names = ("im_start", "im_end", "slice_start", "slice_end", "im_id_start", "im_id_end", "unk")
    for name, tag in zip(names, (*WHOLE_TAGS, *SLICE_TAGS, *ID_TAGS, UNK), strict=True):
        if (found := values.text(name, tag)) != tag:
            raise UnsupportedModel(f"{values.where}: {name} is not supported (got {found!r}; allowed {tag!r})")


def from_metadata(metadata: Mapping[str, Any], config: TowerConfig, tokens: Any) -> MinicpmvProcessor:
    """Return the processor of an mmproj file. Raises ModelFileError for a missing or impossible value.

    Such files do not say whether pictures are numbered: they are from MiniCPM-V 2.6 on, if the text model has the tags.
    """
    assert isinstance(config, MinicpmvTowerConfig)
    mean, std = metadata_normalization(metadata)
    size = metadata_values(metadata).integer(SLICE_KEY, config.patch, MAX_SIDE)
    numbers = config.version != 2 and all(map(tokens, ID_TAGS))
    return MinicpmvProcessor(MinicpmvSettings(slice_size=size, numbers=numbers, mean=mean, std=std), config)
