"""The inputs of vision towers: tiles, and the spans of their patches."""

import numpy as np

from sporelm.models.tower_inputs import ImageInput, make_spans


def test_spans_of_tiles() -> None:
    image = ImageInput(np.zeros((19, 3), np.float32), ((1, 2, 3), (2, 1, 5), (1, 1, 3)), num_rows=4)
    assert image.tile_starts().tolist() == [0, 6, 16, 19]
    assert image.tile_spans().tolist() == [[0, 6], [6, 16], [16, 19]]
    assert image.tile_spans().dtype == np.int32


def test_spans_between_numbers() -> None:
    assert make_spans(np.array([0, 2, 2, 7])).tolist() == [[0, 2], [2, 2], [2, 7]]
    assert make_spans(np.array([0])).shape == (0, 2)
