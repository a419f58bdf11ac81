"""Image processors: a picture's pixels become the patches that a tower reads, and the text that stands for them."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import UnsupportedModel
from sporelm.models.tower_inputs import ImageInput


class ProcessedImage(NamedTuple):
    """A picture, ready for a model.

    text    the replacement of the processor's `placeholder` in a prompt: `row_token` once for each image row, with
            the family's tokens around and between them
    images  one for each maximal run of `row_token` in `text`, in order
    """

    text: str
    images: tuple[ImageInput, ...]


class ImageProcessor(ABC):
    """Turns pictures into tower inputs as the processor of a family in transformers does.

    placeholder  the text that the model's chat template writes for one picture
    row_token    the image token, repeated once for each image row
    prompt_text  the text inserted into a message if the chat template does not write pictures; "": the placeholder
    has_settings_file  whether published folders have a file with its settings
    """

    placeholder: str
    row_token: str
    prompt_text: str = ""
    has_settings_file: bool = True

    @abstractmethod
    def process(self, pixels: NDArray[np.uint8]) -> ProcessedImage:
        """Return the tower inputs and the text of a picture, [height, width, 3] RGB. Raises RequestError for impossible
        sizes."""

    def text_in_prompt(self, picture: ProcessedImage, number: int) -> str:
        """Return the text of the picture with this index in its prompt, from 0. MiniCPM-V writes the index."""
        return picture.text

    @abstractmethod
    def count_rows(self, width: int, height: int) -> int:
        """Return the number of image rows of a picture of this size, in pixels."""

    def to_metadata(self) -> dict[str, MetadataEntry]:
        """Return the settings that an mmproj file stores, under full keys. Raises UnsupportedModel if the family's
        files cannot hold them."""
        raise UnsupportedModel(f"{type(self).__name__}: its settings cannot be written into an mmproj file")

    def to_files(self) -> dict[str, dict[str, Any]]:
        """Return the settings as files of a Hugging Face folder, by name. Raises UnsupportedModel for a family whose
        folders are not written."""
        raise UnsupportedModel(f"{type(self).__name__}: its settings cannot be written into a Hugging Face folder")


def cut_patches(pixels: NDArray[np.float32], patch: int) -> NDArray[np.float32]:
    """Return the patches of a picture [channels, height, width], row by row: float32 [patches, channels * patch ** 2].

    The values of a patch are in the order (channel, y, x). Height and width are multiples of `patch`.
    """
    channels, height, width = pixels.shape
    parts = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return np.ascontiguousarray(parts.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch**2))
