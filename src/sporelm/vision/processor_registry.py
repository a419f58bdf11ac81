"""Finds the image processor of a family. Its module is imported on demand."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from sporelm.checkpoints.loader import ModelSource
from sporelm.files.gguf import GgufFile
from sporelm.models.tower_config import TowerConfig
from sporelm.vision.image_processor import ImageProcessor
from sporelm.vision.processor_files import IMAGE_FILE, has_image_settings

HasToken = Callable[[str], bool]  # whether a text is a token of the text model


def open_processor(source: ModelSource, has_token: HasToken) -> ImageProcessor:
    """Return the processor of a tower's files: of its folder, or of its mmproj file.

    has_token   chooses between spellings of special tokens

    Raises ModelFileError for missing or impossible settings.
    """
    config = source.config
    assert isinstance(config, TowerConfig)
    if isinstance(source.files, GgufFile):
        return processor_from_metadata(source.files.metadata, config, has_token)
    processor: ImageProcessor = _module_of(config).from_folder(source.path, config, has_token)
    return processor


def note_missing_settings(source: ModelSource, processor: ImageProcessor) -> list[str]:
    """Return a note if a tower's folder lacks the settings of its image processor, so that defaults apply."""
    if isinstance(source.files, GgufFile) or not processor.has_settings_file or has_image_settings(source.path):
        return []
    path = source.path / IMAGE_FILE
    return [f"{path} is missing: pictures are prepared with the defaults of {source.config.model}"]


def processor_from_metadata(
    metadata: Mapping[str, Any], config: TowerConfig, has_token: HasToken = lambda text: True
) -> ImageProcessor:
    """Return the processor that the metadata of an mmproj file describes. Raises ModelFileError."""
    processor: ImageProcessor = _module_of(config).from_metadata(metadata, config, has_token)
    return processor


def _module_of(config: TowerConfig) -> Any:
    return import_module(f"sporelm.vision.processors.{config.model}")
