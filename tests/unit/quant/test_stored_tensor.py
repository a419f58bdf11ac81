"""Tensors as they lie in files: rows are cut and reordered without dequantizing."""

import numpy as np
import pytest

from sporelm.errors import ModelFileError, OpError
from sporelm.quant import F16, F32, Q4_1, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor


def stored(number_format: type[QuantFormat], shape: tuple[int, ...], seed: int = 0) -> StoredTensor:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return StoredTensor("w", number_format, shape, quantize_tensor(number_format, x))


SHAPES = [(6, 64), (3, 2, 32), (6,), ()]


@pytest.mark.parametrize(
    ("number_format", "shape"),
    [(f, shape) for f in (F32, F16, Q4_1, Q8_0) for shape in SHAPES if f.values == 1 or len(shape) > 1],
)
def test_rows_and_values(number_format: type[QuantFormat], shape: tuple[int, ...]) -> None:
    tensor = stored(number_format, shape)
    values = tensor.dequantize()
    assert values.shape == shape
    assert values.dtype == np.float32
    assert tensor.nbytes == tensor.blocks.size == values.size // number_format.values * number_format.nbytes
    assert tensor.size == values.size
    assert len(tensor.blocks) == (shape[0] if shape else 1)
    if shape:
        order = np.arange(shape[0])[::-1]
        assert np.array_equal(tensor.take_rows(order).dequantize(), values[order])
        assert np.array_equal(tensor.rows(1, 3).dequantize(), values[1:3])
        assert np.shares_memory(tensor.rows(1, 3).blocks, tensor.blocks)
        assert tensor.rows(2, 2).dequantize().shape == (0, *shape[1:])


def test_rows_may_repeat_and_be_left_out() -> None:
    tensor = stored(Q4_1, (4, 32))
    assert np.array_equal(tensor.take_rows([3, 3, 0]).dequantize(), tensor.dequantize()[[3, 3, 0]])
    assert tensor.take_rows([]).shape == (0, 32)


def test_a_cut_axis_has_no_rows() -> None:
    tensor = stored(Q8_0, (64,))
    assert tensor.blocks.shape == (1, 68)
    with pytest.raises(OpError, match="no rows to take"):
        tensor.rows(0, 1)
    with pytest.raises(OpError, match="no rows to take"):
        stored(F32, ()).take_rows([0])


def test_rows_outside_are_errors() -> None:
    tensor = stored(F32, (4, 3))
    for start, stop in [(-1, 2), (3, 2), (0, 5)]:
        with pytest.raises(OpError, match="has 4 rows"):
            tensor.rows(start, stop)
    for index in [[4], [-1], [[0]]]:
        with pytest.raises(OpError, match="has 4 rows"):
            tensor.take_rows(index)


def test_wrong_sizes_are_errors() -> None:
    with pytest.raises(ModelFileError, match=r"Q8_0 \[2, 32\] needs 68 contiguous bytes, got 34"):
        StoredTensor("w", Q8_0, (2, 32), np.zeros(34, np.uint8))
    with pytest.raises(ModelFileError, match="got 6 of float32"):
        StoredTensor("w", F16, (3,), np.zeros(6, np.float32))  # type: ignore[arg-type]
    with pytest.raises(OpError, match="rows of 33 values"):
        StoredTensor("w", Q8_0, (2, 33), np.zeros(68, np.uint8))


def test_blocks_are_a_view_of_what_is_given() -> None:
    memory = np.zeros(68, np.uint8)
    memory.flags.writeable = False
    assert np.shares_memory(StoredTensor("w", Q8_0, (2, 32), memory).blocks, memory)
