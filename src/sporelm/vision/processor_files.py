"""The settings of image processors in Hugging Face folders and in mmproj files, checked on every read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_object
from sporelm.vision.pixels import FILTERS

# Mean and standard deviation of channels: those of CLIP's training set; SigLIP uses HALF for both.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
BYTE_SCALE = 1 / 255
MAX_SIDE = 1 << 14  # pixels
MEAN_KEY, STD_KEY = "clip.vision.image_mean", "clip.vision.image_std"
COLORS = 3
IMAGE_FILE, WHOLE_FILE = "preprocessor_config.json", "processor_config.json"


@dataclass(frozen=True)
class ProcessorFiles:
    """The values of a folder's processor.

    image      settings of the image processor: preprocessor_config.json, or "image_processor" in processor_config.json
    processor  settings of the processor that combines pictures and text: processor_config.json
    """

    image: ConfigValues
    processor: ConfigValues


def read_processor_files(folder: Path) -> ProcessorFiles:
    """Read the settings of a folder; files that it lacks count as empty. Raises ModelFileError for damaged JSON."""
    paths = [folder / name for name in (IMAGE_FILE, WHOLE_FILE)]
    image, whole = (read_object(path) if path.exists() else {} for path in paths)
    inner = whole.get("image_processor")
    image = {**image, **(inner if isinstance(inner, Mapping) else {})}
    where = str(paths[1] if isinstance(inner, Mapping) and not paths[0].exists() else paths[0])
    where += "" if has_image_settings(folder) else " (missing, so defaults apply)"
    return ProcessorFiles(ConfigValues(image, where), ConfigValues({**image, **whole}, str(paths[1])))


def has_image_settings(folder: Path) -> bool:
    """Return whether a folder has the settings of an image processor. Raises ModelFileError for damaged JSON."""
    if (folder / IMAGE_FILE).exists():
        return True
    path = folder / WHOLE_FILE
    return path.exists() and isinstance(read_object(path).get("image_processor"), Mapping)


def read_side(values: ConfigValues, key: str, default: Any) -> int | tuple[int, int]:
    """Return a size setting: (height, width), or the length of the shorter side.

    Settings have {"height": ..., "width": ...}, {"shortest_edge": ...}, or one number for the latter.
    """
    value = values.get(key, default)
    if isinstance(value, int):
        value = {"shortest_edge": value}
    inner = ConfigValues(value if isinstance(value, Mapping) else {}, f"{values.where}: {key}")
    if inner.has("shortest_edge"):
        return inner.integer("shortest_edge", 1, MAX_SIDE)
    return inner.integer("height", 1, MAX_SIDE), inner.integer("width", 1, MAX_SIDE)


def read_square(values: ConfigValues, key: str, default: Any) -> tuple[int, int]:
    """Return a size setting as (height, width); one number is both."""
    side = read_side(values, key, default)
    return (side, side) if isinstance(side, int) else side


def read_filter(values: ConfigValues, default: int) -> int:
    """Return the number of Pillow's resampling filter."""
    return values.integer("resample", FILTERS[0], FILTERS[-1], default)


def read_normalization(
    values: ConfigValues, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the scale of pixels, their means and their standard deviations.

    mean, std   the defaults of the family's processor
    """
    scale = values.number("rescale_factor", 1e-9, 1.0, BYTE_SCALE) if values.flag("do_rescale", True) else 1.0
    if not values.flag("do_normalize", True):
        return scale, (0.0,) * COLORS, (1.0,) * COLORS
    if values.has("image_mean"):
        mean = values.numbers("image_mean", COLORS, -1e3, 1e3)
    if values.has("image_std"):
        std = values.numbers("image_std", COLORS, 1e-6, 1e3)
    return scale, mean, std


def require_resizing(values: ConfigValues) -> None:
    """Raise UnsupportedModel for a processor that does not resize."""
    if not values.flag("do_resize", True):
        raise UnsupportedModel(f"{values.where}: do_resize is not supported (got False; allowed True)")


def check_image_size(where: str, size: tuple[int, int], image_size: int) -> None:
    """Raise ModelFileError unless a processor makes pictures of the tower's size, (height, width); (0, 0) stands for
    different sizes."""
    if size == (0, 0):
        raise ModelFileError(
            f"{where}: the processor makes pictures of different sizes, but the vision tower takes "
            f"{image_size}x{image_size} pixels"
        )
    if size != (image_size, image_size):
        raise ModelFileError(
            f"{where}: the processor makes pictures of {size[1]}x{size[0]} pixels, but the vision tower takes "
            f"{image_size}x{image_size}"
        )


class NormalizationSettings(Protocol):
    """The settings of all processors."""

    @property
    def scale(self) -> float: ...

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


class PixelSettings(NormalizationSettings, Protocol):
    """The settings of processors with a filter of their own."""

    @property
    def resample(self) -> int: ...


def settings_json(settings: PixelSettings) -> dict[str, Any]:
    """Return the keys of preprocessor_config.json for resizing and normalization."""
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "resample": settings.resample,
        "do_rescale": True,
        "rescale_factor": settings.scale,
        "do_normalize": True,
        "image_mean": list(settings.mean),
        "image_std": list(settings.std),
    }


def normalization_metadata(settings: NormalizationSettings) -> dict[str, MetadataEntry]:
    """Return means and standard deviations as metadata of an mmproj file, under full keys."""
    return {MEAN_KEY: ("[f32]", list(settings.mean)), STD_KEY: ("[f32]", list(settings.std))}


def metadata_values(metadata: Mapping[str, Any]) -> ConfigValues:
    """Return the metadata of an mmproj file with arrays as lists, under full keys."""
    plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in metadata.items()}
    return ConfigValues(plain, "mmproj file")


def metadata_normalization(metadata: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations in an mmproj file. Raises ModelFileError if they are missing."""
    values = metadata_values({key: metadata[key] for key in (MEAN_KEY, STD_KEY) if key in metadata})
    for key in (MEAN_KEY, STD_KEY):
        if not values.has(key):
            raise ModelFileError(f"mmproj file: {format_value(key)} is missing")
    return values.numbers(MEAN_KEY, COLORS, -1e3, 1e3), values.numbers(STD_KEY, COLORS, 1e-6, 1e3)
