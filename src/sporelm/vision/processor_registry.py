"""Finds the image processor of a family. Its module is imported on demand."""

from collections.abc import Callable
from importlib import import_module

from sporelm.checkpoints.loader import ModelSource
from sporelm.files.gguf import GgufFile
from sporelm.models.tower_config import TowerConfig
from sporelm.vision.image_processor import ImageProcessor

HasToken = Callable[[str], bool]  # whether a text is a token of the text model


def open_processor(source: ModelSource, has_token: HasToken) -> ImageProcessor:
    """Return the processor of a tower's files: of its folder, or of its mmproj file.

    has_token   chooses between spellings of special tokens

    Raises ModelFileError for missing or impossible settings.
    """
    config = source.config
    assert isinstance(config, TowerConfig)
    family = import_module(f"sporelm.vision.processors.{config.model}")
    if isinstance(source.files, GgufFile):
        processor: ImageProcessor = family.from_metadata(source.files.metadata, config, has_token)
    else:
        processor = family.from_folder(source.path, config, has_token)
    return processor
