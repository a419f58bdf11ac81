"""A summary of what a model can see or embed: its tower, its memory, and the rows of the prompt that pictures take."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.api.model_loader import packed_bytes_per_param
from sporelm.api.tower_loading import check_single_tower
from sporelm.backends.backend_parts import parts_of
from sporelm.backends.protocol import Backend
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.towers.open_tower import open_tower
from sporelm.checkpoints.towers.supported_towers import IMAGE_ENCODERS, TOWERS
from sporelm.models import build
from sporelm.models.decoder import Decoder
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_registry import build_tower
from sporelm.vision.processor_registry import open_processor

USUAL_SIZES = ((224, 224), (640, 480), (1024, 1024), (1920, 1080))  # width and height, in pixels


class PictureRows(NamedTuple):
    """The rows of the prompt that a picture of this size takes; its tags and line breaks are not counted."""

    width: int
    height: int
    tokens: int


@dataclass(frozen=True)
class VisionSummary:
    """The vision tower of a model.

    family            name of its module
    models            common names of its models
    verified_against  references for its logits
    path              of its file, or of the model's folder
    image_size        side of pictures or tiles for which positions were learned, in pixels; None: there are none
    parameters        numbers in its weights
    bytes             of its packed weights
    is_fitting        its rows are as wide as the text model
    """

    family: str
    models: str
    verified_against: tuple[str, ...]
    path: str
    layers: int
    width: int
    patch: int
    image_size: int | None
    parameters: int
    bytes: int
    is_fitting: bool
    pictures: tuple[PictureRows, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"pictures": [picture._asdict() for picture in self.pictures]}


@dataclass(frozen=True)
class EncoderSummary:
    """The image encoder of a Hugging Face folder, and the text encoder beside it.

    columns     values of a vector
    has_text    there is a text encoder
    parameters  numbers in the weights of both
    bytes       of their packed weights
    """

    family: str
    models: str
    verified_against: tuple[str, ...]
    layers: int
    width: int
    patch: int
    image_size: int
    columns: int
    has_text: bool
    parameters: int
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize_encoder(sources: Sequence[ModelSource], backend: Backend) -> EncoderSummary:
    """Return what a folder of CLIP or SigLIP embeds.

    sources   the open image encoder, and the text encoder if there is one

    Raises ModelFileError, UnsupportedModel.
    """
    towers = []
    for source in sources:
        assert isinstance(source.config, TowerConfig)
        towers.append(build_tower(source.config))
    config: TowerConfig = towers[0].config
    family = next(each for each in IMAGE_ENCODERS if each.module == config.model)
    params = [tower.params() for tower in towers]
    packed = [
        packed_bytes_per_param(source, each, backend, dequantize=False)
        for source, each in zip(sources, params, strict=True)
    ]
    return EncoderSummary(
        family=family.module,
        models=family.title,
        verified_against=family.verified_against,
        layers=config.layers,
        width=config.width,
        patch=config.patch,
        image_size=config.image_size,
        columns=config.columns,
        has_text=len(sources) > 1,
        parameters=sum(prod(param.shape) for each in params for param in each),
        bytes=sum(sum(sizes.values()) for sizes in packed),
    )


def summarize_vision(
    source: ModelSource, mmproj: Path | None, backend: Backend, sizes: Sequence[tuple[int, int]] = USUAL_SIZES
) -> VisionSummary | None:
    """Return what a model can see; None if it has no vision tower that is supported.

    source   the open text model
    sizes    of pictures, (width, height)

    Raises ModelFileError, UnsupportedModel; RequestError for a file and a folder with a tower of its own, and for a
    size that the model does not take.
    """
    if not check_single_tower(mmproj, source):
        return None
    path = source.path if mmproj is None else mmproj
    model = build(source.config)
    with ExitStack() as files:
        tower_source = files.enter_context(closing(open_tower(path)))
        config = tower_source.config
        assert isinstance(config, TowerConfig)
        params = build_tower(config).params()
        place = parts_of(backend)[-1]  # of a split model: the CPU
        sizes_by_param = packed_bytes_per_param(tower_source, params, place, dequantize=False)
        processor = open_processor(tower_source, lambda text: True)
        family = next(each for each in TOWERS if each.module == config.model)
        return VisionSummary(
            family=family.module,
            models=family.title,
            verified_against=family.verified_against,
            path=str(path),
            layers=config.layers,
            width=config.width,
            patch=config.patch,
            image_size=config.image_size or None,
            parameters=sum(prod(param.shape) for param in params),
            bytes=sum(sizes_by_param.values()),
            is_fitting=isinstance(model, Decoder) and config.columns == model.image_columns,
            pictures=tuple(PictureRows(*size, processor.count_rows(*size)) for size in sizes),
        )
