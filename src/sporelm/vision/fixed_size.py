"""Pictures of one size: the image processors of CLIP, SigLIP and the families whose towers have a fixed input size.

Source: transformers' image_processing_pil_clip.py, image_processing_pil_siglip.py and image_processing_pil_llava.py;
for padded pictures of mmproj files, llama.cpp's tools/mtmd/mtmd-image.cpp (mtmd_image_preprocessor_fixed_size).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.vit_tower import VitConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.pixels import (
    BICUBIC,
    Pixels,
    center_crop,
    fitting_size,
    normalize,
    pad_around,
    resize,
    resize_and_crop,
)
from sporelm.vision.processor_files import (
    BYTE_SCALE,
    CLIP_MEAN,
    CLIP_STD,
    MEAN_KEY,
    STD_KEY,
    check_image_size,
    metadata_normalization,
    read_filter,
    read_normalization,
    read_side,
    read_square,
    require_resizing,
    settings_json,
)

SIZE: Final = 224  # default of all of these processors
LLAVA_PROCESSORS: Final = ("LlavaImageProcessor", "LlavaImageProcessorFast")  # which can pad pictures to squares
MTMD_COLOR: Final = (122, 116, 104)  # mean color of CLIP's pictures, around padded ones


@dataclass(frozen=True)
class FixedSizeSettings:
    """The settings of a processor.

    size              (height, width) to which a picture is resized, or the length of its shorter side
    crop              (height, width) of the center crop; None: no crop
    square_color      pictures are padded to a square of this color before they are resized; None: they are not
    fit_color         pictures are resized to fit `size` and padded with this color; None: they are stretched
    resample          Pillow's filter
    scale, mean, std  see `pixels.normalize`
    """

    size: tuple[int, int] | int
    crop: tuple[int, int] | None = None
    square_color: tuple[int, ...] | None = None
    fit_color: tuple[int, ...] | None = None
    resample: int = BICUBIC
    scale: float = BYTE_SCALE
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    @property
    def result(self) -> tuple[int, int]:
        """The (height, width) of all processed pictures; (0, 0) if they differ."""
        if self.crop is not None:
            return self.crop
        return (0, 0) if isinstance(self.size, int) else self.size

    def apply(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return a resized and normalized picture: float32 [3, height, width]."""
        return self.normalize(self.resize(pixels))

    def resize(self, pixels: Pixels) -> Pixels:
        """Return a picture resized, cropped or padded to its final size."""
        if self.square_color is not None:
            side = max(pixels.shape[:2])
            pixels = pad_around(pixels, side, side, self.square_color)
        if isinstance(self.size, int):
            assert self.crop is not None
            return resize_and_crop(pixels, self.size, self.crop, self.resample)
        if self.fit_color is not None:
            inner = fitting_size(pixels.shape[0], pixels.shape[1], self.size)
            return pad_around(resize(pixels, *inner, self.resample), *self.size, self.fit_color)
        resized = resize(pixels, *self.size, self.resample)
        return resized if self.crop is None else center_crop(resized, *self.crop)

    def normalize(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return normalized pixels: float32 [3, height, width]."""
        return normalize(pixels, self.mean, self.std, self.scale)

    def to_metadata(self) -> dict[str, MetadataEntry]:
        """Return what an mmproj file holds of the settings, under full keys."""
        return {MEAN_KEY: ("[f32]", list(self.mean)), STD_KEY: ("[f32]", list(self.std))}

    def to_json(self, kind: str = "") -> dict[str, Any]:
        """Return the settings as preprocessor_config.json has them.

        kind   the class of image processors; "": the one of CLIP, SigLIP or LLaVA with these settings. LLaVA's pads to
               a square before it resizes, which differs slightly from llama.cpp
        """
        if self.square_color is not None or self.fit_color is not None:
            sides = as_sides((self.size, self.size) if isinstance(self.size, int) else self.size)
            padded = {"image_processor_type": LLAVA_PROCESSORS[0], "do_pad": True, "do_center_crop": False}
            return {**padded, "size": sides, **settings_json(self)}
        kind = kind or ("SiglipImageProcessor" if self.crop is None else "CLIPImageProcessor")
        size = {"shortest_edge": self.size} if isinstance(self.size, int) else as_sides(self.size)
        crop: dict[str, Any] = {"do_center_crop": self.crop is not None}
        crop |= {} if self.crop is None else {"crop_size": as_sides(self.crop)}
        return {"image_processor_type": kind, "size": size, **crop, **settings_json(self)}


def as_sides(size: tuple[int, int]) -> dict[str, int]:
    """Return (height, width) as a size setting."""
    return {"height": size[0], "width": size[1]}


def read_settings(
    values: ConfigValues,
    config: VitConfig,
    *,
    crops: bool,
    resample: int = BICUBIC,
    mean: tuple[float, ...] = CLIP_MEAN,
    std: tuple[float, ...] = CLIP_STD,
) -> FixedSizeSettings:
    """Return the settings of an image processor.

    crops      the default of do_center_crop
    mean, std  the defaults of image_mean and image_std

    Raises ModelFileError if its pictures are not of the tower's size, UnsupportedModel for an unsupported option.
    """
    require_resizing(values)
    scale, mean, std = read_normalization(values, mean, std)
    size = read_side(values, "size", SIZE if crops else {"height": SIZE, "width": SIZE})
    crop = read_square(values, "crop_size", SIZE) if values.flag("do_center_crop", crops) else None
    pads_squares = values.get("image_processor_type") in LLAVA_PROCESSORS and values.flag("do_pad", False)
    color = tuple(int(each * 255) for each in mean) if pads_squares else None
    is_square = color is not None or (not crops and isinstance(values.get("size"), int))
    if crop is None and isinstance(size, int) and is_square:
        size = (size, size)
    settings = FixedSizeSettings(size, crop, color, None, read_filter(values, resample), scale, mean, std)
    check_image_size(values.where, settings.result, config.image_size)
    return settings


def metadata_settings(
    metadata: Mapping[str, Any],
    config: VitConfig,
    *,
    fit_color: tuple[int, ...] | None = None,
    resample: int = BICUBIC,
) -> FixedSizeSettings:
    """Return the settings of an mmproj file. Raises ModelFileError for missing or impossible values."""
    mean, std = metadata_normalization(metadata)
    side = config.image_size
    return FixedSizeSettings((side, side), None, None, fit_color, resample, BYTE_SCALE, mean, std)


def tile_input(values: NDArray[np.float32], config: VitConfig, num_rows: int) -> ImageInput:
    """Return one tile, float32 [3, image_size, image_size], as the input of a tower. Pixels past the last whole patch
    are dropped, as by a convolution."""
    side = config.grid * config.patch
    return ImageInput(cut_patches(values[:, :side, :side], config.patch), ((1, config.grid, config.grid),), num_rows)
