"""The inputs of a vision tower: the patches of a picture, and their grids."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16


@dataclass(frozen=True, eq=False)
class ImageInput:
    """One run of image rows of a prompt: the patches of its tiles, as a tower reads them.

    patches   float32 [patches, values], tile after tile; values in the order of a flattened convolution weight:
              (channel, [time,] y, x) of a patch
    grids     (time, height, width) in patches, of each tile. Patches are row-major, unless the family's processor in
              transformers uses another order (Qwen2-VL: the patches that are merged are adjacent)
    num_rows  rows that the projector returns: the image tokens of the prompt
    layout    family-specific integers, such as the unpadded size of LLaVA-NeXT
    """

    patches: NDArray[np.float32]
    grids: tuple[tuple[int, int, int], ...]
    num_rows: int
    layout: tuple[int, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """A cryptographic hash of all fields: equal digests mean equal inputs."""
        numbers = np.array([len(self.patches), self.num_rows, len(self.grids), *np.ravel(self.grids), *self.layout])
        digest = blake2b(numbers.astype("<i8").tobytes(), digest_size=DIGEST_BYTES, person=b"image rows")
        digest.update(np.ascontiguousarray(self.patches).data)
        return digest.digest()

    def tile_spans(self) -> NDArray[np.int32]:
        """Return the first patch of each tile and the one past its last: int32 [tiles, 2]."""
        return make_spans(self.tile_starts())

    def tile_starts(self) -> NDArray[np.int64]:
        """Return the index of the first patch of each tile, then the number of patches: int64 [tiles + 1]."""
        return np.concatenate([[0], np.cumsum([time * height * width for time, height, width in self.grids])])


def make_spans(starts: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """Return the spans between numbers [spans + 1] as pairs of the first row and the one past the last: int32
    [spans, 2]."""
    return np.stack([starts[:-1], starts[1:]], axis=1).astype(np.int32)
