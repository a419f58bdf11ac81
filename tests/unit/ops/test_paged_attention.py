"""Attention whose rows see the whole image that they belong to: which positions, and what is refused."""

from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import OpError
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import F32

BACKEND = ReferenceBackend()
LENGTH = 50
IMAGES = ((0, 4), (10, 34), (34, 36), (45, 50))


def ints(values: Any) -> Any:
    return BACKEND.tensor(np.array(values, np.int32))


def spans_of(images: tuple[tuple[int, int], ...], length: int = LENGTH) -> np.ndarray:
    spans = np.zeros((length, 2), np.int32)
    for first, stop in images:
        spans[first:stop] = first, stop
    return spans


def visible(spans: np.ndarray | None, window: int | None, first: int = 0) -> np.ndarray:
    """Return which positions the rows from `first` on see: equal weights of values that are 1 at their own position."""
    cache = BACKEND.allocate_pages(1, [(1, PAGE)], F32)[0]
    values = BACKEND.tensor(np.eye(LENGTH, PAGE, dtype=np.float32))
    ops.store_kv(BACKEND.tensor(np.zeros((LENGTH, PAGE), np.float32)), values, cache, ints(range(LENGTH)))
    q = BACKEND.tensor(np.ones((LENGTH - first, PAGE), np.float32))
    given = [ints([0, LENGTH - first]), ints([LENGTH]), ints([[0]])]
    given += [] if spans is None else [None, None, ints(spans[first:])]
    seen: np.ndarray = ops.attention(q, cache, *given, scale=1.0, window=window).numpy()[:, :LENGTH] > 0
    return seen


@pytest.mark.parametrize("window", [None, 1, 7, 30])
def test_rows_of_an_image_see_its_end(window: int | None) -> None:
    """Within the window of positions before them, which may be shorter than the image."""
    found = visible(spans_of(IMAGES), window)
    for row in range(LENGTH):
        stop = next((stop for first, stop in IMAGES if first <= row < stop), row + 1)
        lowest = 0 if window is None else max(0, row - window + 1)
        assert np.flatnonzero(found[row]).tolist() == list(range(lowest, stop))
    assert np.array_equal(visible(spans_of(IMAGES), window, first=10), found[10:])


def test_text_needs_no_spans() -> None:
    assert np.array_equal(visible(spans_of(()), 7), visible(None, 7))


@pytest.mark.parametrize("window", [7, 30])
def test_the_positions_are_those_of_gemma3(window: int) -> None:
    """In transformers, whose Gemma 3 has layers with and without a window."""
    torch = pytest.importorskip("torch", reason="torch computes the masks of transformers")
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3", reason="its masks are compared with")
    if not hasattr(gemma3, "create_masks_for_vision_model"):
        pytest.skip("this release of transformers has no function for the masks alone")
    config = gemma3.Gemma3TextConfig(sliding_window=window, num_hidden_layers=2, attn_implementation="eager")
    images = IMAGES[:2] + IMAGES[3:]  # transformers takes images without text between them for one
    kinds = torch.zeros(1, LENGTH, dtype=torch.int64)
    for first, stop in images:
        kinds[0, first:stop] = 1
    masks = gemma3.create_masks_for_vision_model(
        config=config,
        inputs_embeds=torch.zeros(1, LENGTH, 8),
        attention_mask=None,
        position_ids=torch.arange(LENGTH).unsqueeze(0),
        block_sequence_ids=gemma3.get_block_sequence_ids_for_mask(kinds),
        **dict.fromkeys({"cache", "past_key_values"} & {*gemma3.create_masks_for_vision_model.__annotations__}),
    )
    for kind, limit in (("full_attention", None), ("sliding_attention", window)):
        assert np.array_equal(masks[kind][0, 0].numpy() == 0, visible(spans_of(images), limit)), kind


@pytest.mark.parametrize(
    ("row", "span"),
    [(3, (4, 9)), (9, (0, 9)), (2, (0, LENGTH + 1)), (0, (-1, 4)), (5, (5, 5)), (0, (0, -1))],
)
def test_a_row_outside_its_image_is_refused(row: int, span: tuple[int, int]) -> None:
    spans = spans_of(())
    spans[row] = span
    message = rf"spans\[{row}\] \({span[0]}, {span[1]}\) must be \(0, 0\), or an image with position {row} among 50"
    with pytest.raises(OpError, match=message):
        visible(spans, None)
