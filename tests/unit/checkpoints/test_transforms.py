"""Transforms: what is loaded and saved again is the same tensor, in floats and in blocks of a number format."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.checkpoints.tensor_mapping import MappedTensor, TensorMapping, map_tensor, save_group, stored_shape
from sporelm.checkpoints.transforms import (
    AddConstant,
    Divide,
    LeadingOnes,
    NegativeExp,
    NormalizeRows,
    PermuteColumns,
    PermuteRotary,
    SkipRows,
    SplitHeads,
    Squeeze,
    Stack,
    StackTwo,
    TakeFrame,
    TakePart,
    TakeRows,
    Transform,
    Transpose,
    Unflatten,
    ZerosFirst,
    as_f32,
    tensor_of_values,
)
from sporelm.errors import UnsupportedModel
from sporelm.models.params import Param
from sporelm.quant import F16, F32, Q4_K, Q6_K, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

WIDTH = 64  # columns: whole blocks of Q8_0
FORMATS = (F32, F16, Q8_0)
FLOATS = (F32, F16)


@dataclass(frozen=True)
class Heads:
    """The numbers of a configuration that transforms ask for."""

    head_dim: int = 8
    rotary: int = 0


@dataclass(frozen=True)
class Example:
    """A chain of transforms: the shape of its parameter, that of the stored tensor, and the formats that it moves."""

    transforms: Sequence[Transform]
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    formats: Sequence[type[QuantFormat]] = FORMATS
    config: Any = Heads()


def permutation(count: int, seed: int = 0) -> Any:
    order = np.random.RandomState(seed).permutation(count)
    return lambda config: order


MOVES = {
    "rows": Example([TakeRows(permutation(24))], (24, WIDTH), (24, WIDTH)),
    "rows of each expert": Example([TakeRows(permutation(6), axis=1)], (3, 6, WIDTH), (3, 6, WIDTH)),
    "values of each expert's bias": Example([TakeRows(permutation(6), axis=1)], (3, 6), (3, 6), FLOATS),
    "a vector's values": Example([TakeRows(permutation(24))], (24,), (24,), FLOATS),
    "rotary pairs": Example([PermuteRotary()], (24, WIDTH), (24, WIDTH)),
    "rotary pairs of a bias": Example([PermuteRotary()], (24,), (24,), FLOATS),
    "some rotary pairs": Example([PermuteRotary()], (24, WIDTH), (24, WIDTH), config=Heads(rotary=4)),
    "columns": Example([PermuteColumns(permutation(WIDTH))], (3, WIDTH), (3, WIDTH)),
    "skipped rows": Example([SkipRows(2)], (5, WIDTH), (7, WIDTH)),
    "transposed": Example([Transpose()], (5, WIDTH), (WIDTH, 5), FLOATS),
    "transposed experts": Example([Transpose("keep")], (3, 5, WIDTH), (3, WIDTH, 5), FLOATS),
    "heads": Example([SplitHeads()], (3, 5, WIDTH), (15, WIDTH)),
    "transposed heads": Example([SplitHeads(), Transpose("dequantize")], (3, 5, WIDTH), (3 * WIDTH, 5), FLOATS),
    "heads among others": Example(
        [TakeRows(permutation(15)), SplitHeads(), Transpose("dequantize")], (3, WIDTH, 5), (15, WIDTH), FLOATS
    ),
    "a matrix as a vector": Example([Unflatten()], (3, WIDTH), (3 * WIDTH,)),
    "an axis between": Example([Squeeze((1,))], (3, WIDTH), (3, 1, WIDTH)),
    "a vector as a column": Example([Squeeze((1,))], (24,), (24, 1), FLOATS),
    "axes in front": Example([Squeeze((0, 1))], (WIDTH,), (1, 1, WIDTH)),
    "axes in front and behind": Example([Squeeze((0, 1, 3))], (24,), (1, 1, 24, 1), FLOATS),
    "taps": Example(
        [Squeeze((1,)), Transpose(), PermuteColumns(permutation(24))], (4, 24), (24, 1, 4), FLOATS
    ),
    "rows in columns": Example([Transpose(), TakeRows(permutation(24))], (24, 8), (8, 24), FLOATS),
}  # fmt: skip


def mapping(example: Example) -> MappedTensor:
    return map_tensor(Param("w", example.shape), "t", example.transforms, example.config)


def tensor(shape: tuple[int, ...], number_format: type[QuantFormat], seed: int) -> StoredTensor:
    values = np.random.RandomState(seed).standard_normal(shape).astype(np.float32)
    return StoredTensor("t", number_format, shape, quantize_tensor(number_format, values).reshape(-1))


def assert_same(found: StoredTensor, expected: StoredTensor) -> None:
    assert (found.format, found.shape) == (expected.format, expected.shape)
    assert np.array_equal(found.blocks, expected.blocks)
    assert (found.order is None) is (expected.order is None)
    assert found.order is None or np.array_equal(found.order, expected.order)


@pytest.mark.parametrize(
    ("name", "number_format"), [(name, each) for name, example in MOVES.items() for each in example.formats]
)
@given(seed=st.integers(0, 1 << 30))
def test_what_is_moved_is_moved_back_bit_for_bit(name: str, number_format: type[QuantFormat], seed: int) -> None:
    example = MOVES[name]
    mapped = mapping(example)
    assert mapped.source_shape == example.stored
    stored = tensor(example.stored, number_format, seed)
    if any(isinstance(each, SkipRows) for each in example.transforms):
        stored.blocks.flags.writeable = True
        stored.blocks[:2] = 0  # rows that no parameter has are saved as zeros
    loaded = mapped.load(stored)
    assert loaded.shape == example.shape
    assert loaded.format is number_format
    assert np.isin(loaded.dequantize(), stored.dequantize()).all()
    (saved,) = mapped.save(loaded)
    assert_same(saved, stored)


def whole_halves(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random values whose sums, and products with halves, are exact."""
    return (np.random.RandomState(seed).randint(-1024, 1024, shape) / 2).astype(np.float32)


COMPUTED = {
    "a constant": (AddConstant(1.0), lambda values: values + 1),
    "a factor": (Divide(lambda config: 0.25), lambda values: values * 4),
    "a factor for each row": (
        Divide(lambda config: np.array([0.5, 2.0, -1.0])[:, None]),
        lambda values: values / np.array([[0.5], [2.0], [-1.0]]),
    ),
    "a factor of one": (Divide(lambda config: 1.0), lambda values: values),
    "norms that are kept": (NormalizeRows(when=lambda config: False), lambda values: values),
}


@pytest.mark.parametrize("name", COMPUTED)
@given(seed=st.integers(0, 1 << 30))
def test_what_is_computed_is_undone(name: str, seed: int) -> None:
    transform, expected = COMPUTED[name]
    values = whole_halves((3, 8), seed)
    mapped = mapping(Example([transform], (3, 8), (3, 8)))
    loaded = mapped.load(tensor_of_values("t", values))
    assert np.array_equal(loaded.dequantize(), expected(values).astype(np.float32))
    (saved,) = mapped.save(loaded)
    assert_same(saved, tensor_of_values("t", values))


@pytest.mark.parametrize("number_format", FORMATS, ids=lambda each: each.name)
def test_what_computes_gives_f32_and_what_does_not_keeps_blocks(number_format: type[QuantFormat]) -> None:
    stored = tensor((3, WIDTH), number_format, 0)
    changes = {transform: mapping(Example([transform], (3, WIDTH), ())) for transform, _ in COMPUTED.values()}
    for transform, mapped in changes.items():
        loaded = mapped.load(stored)
        assert loaded.format is (F32 if mapped.changes_values else number_format), transform


@pytest.mark.parametrize("axis", [-1, 0])
def test_rows_are_loaded_with_length_one(axis: int) -> None:
    values = whole_halves((3, 8), 1)
    mapped = mapping(Example([NormalizeRows(axis)], (3, 8), ()))
    found = mapped.load(tensor_of_values("t", values)).dequantize()
    np.testing.assert_allclose(np.linalg.norm(found, axis=axis), 1, rtol=1e-6)
    assert mapped.changes_values
    (saved,) = mapped.save(tensor_of_values("t", found))
    assert np.array_equal(saved.dequantize(), found)  # their norms are lost


def test_decay_survives_the_round_trip_bit_for_bit() -> None:
    """Folders hold log(-decay), GGUF files decay: an error of either direction would be amplified by a recurrence."""
    logs = np.random.default_rng(0).uniform(-20, 20, 100_000).astype(np.float32)
    logs[:16] = np.log(np.arange(1, 17, dtype=np.float32))  # Mamba's own initial values
    mapped = mapping(Example([NegativeExp()], logs.shape, ()))
    decay = mapped.load(tensor_of_values("t", logs))
    (saved,) = mapped.save(decay)
    assert_same(mapped.load(saved), decay)


def test_rows_and_logarithms() -> None:
    decay = -1 - np.arange(4, dtype=np.float32)
    mapped = mapping(Example([TakeRows(permutation(4)), NegativeExp()], (4,), ()))
    (saved,) = mapped.save(tensor_of_values("t", decay))
    np.testing.assert_allclose(mapped.load(saved).dequantize(), decay, rtol=1e-6)


@pytest.mark.parametrize(
    "order", [None, np.random.RandomState(1).permutation(64).astype(np.int32)], ids=["", "act-order"]
)
def test_columns_of_blocks_stay_and_say_their_order(order: Any) -> None:
    """No number is rounded again; what multiplies the weight is put in order instead."""
    index = permutation(64, 2)
    stored = replace(tensor((2, 64), Q8_0, 3), order=order)
    mapped = mapping(Example([PermuteColumns(index)], (2, 64), ()))
    found = mapped.load(stored)
    assert np.array_equal(found.dequantize(), stored.dequantize()[:, index(None)])
    assert np.array_equal(found.blocks, stored.blocks)
    (saved,) = mapped.save(found)
    assert_same(saved, stored)


@pytest.mark.parametrize("number_format", FORMATS, ids=lambda each: each.name)
def test_parts_of_one_tensor(number_format: type[QuantFormat]) -> None:
    """Rows of one tensor that are three parameters, in a form of their own each."""
    every = np.random.RandomState(3).permutation(24)
    rows = np.split(every, [8, 16])
    params = [Param(f"w{part}", (8, WIDTH)) for part in range(3)]
    group = [
        map_tensor(param, "t", [TakeRows(lambda config, part=part: rows[part]), *more], Heads())
        for part, (param, more) in enumerate(zip(params, ([], [PermuteRotary()], []), strict=True))
    ]
    stored = tensor((24, WIDTH), number_format, 4)
    assert stored_shape(group) == (24, WIDTH)
    loaded = [mapped.load(stored) for mapped in group]
    assert np.array_equal(loaded[0].dequantize(), stored.dequantize()[rows[0]])
    found = save_group(group, loaded)
    assert list(found) == ["t"]
    assert_same(found["t"], stored)


@pytest.mark.parametrize("number_format", FORMATS, ids=lambda each: each.name)
def test_matrices_of_one_tensor(number_format: type[QuantFormat]) -> None:
    group = [
        map_tensor(Param(f"w{part}", (WIDTH,)), "t", [TakePart(part, 3), Squeeze((0, 1))], None) for part in range(3)
    ]
    stored = tensor((3, 1, 1, WIDTH), number_format, 5)
    assert stored_shape(group) == (3, 1, 1, WIDTH)
    loaded = [mapped.load(stored) for mapped in group]
    assert [each.shape for each in loaded] == [(WIDTH,)] * 3
    assert_same(save_group(group[::-1], loaded[::-1])["t"], stored)


@pytest.mark.parametrize("number_format", FLOATS, ids=lambda each: each.name)
def test_frames_of_a_convolution(number_format: type[QuantFormat]) -> None:
    kernel = (3, 2, 4, 4)  # channels, frames, height, width
    group = [map_tensor(Param(f"w{frame}", (5, 48)), "t", [TakeFrame(frame, lambda _: kernel)], 0) for frame in (0, 1)]
    stored = tensor((5, *kernel), number_format, 8)
    assert stored_shape(group) == (5, *kernel)
    loaded = [mapped.load(stored) for mapped in group]
    for frame, each in enumerate(loaded):
        assert each.format is number_format
        assert np.array_equal(each.dequantize(), stored.dequantize()[:, :, frame].reshape(5, 48))
    assert_same(save_group(group[::-1], loaded[::-1])["t"], stored)


def test_transposed_matrices_of_one_tensor() -> None:
    group = [map_tensor(Param(f"w{part}", (5, 8)), "t", [TakePart(part, 2), Transpose()], None) for part in range(2)]
    stored = tensor((2, 8, 5), F16, 6)
    assert stored_shape(group) == (2, 8, 5)
    loaded = [mapped.load(stored) for mapped in group]
    assert np.array_equal(loaded[1].dequantize(), stored.dequantize()[1].T)
    assert_same(save_group(group, loaded)["t"], stored)


def test_parts_of_several_formats_are_saved_as_f32() -> None:
    group = [
        map_tensor(Param(f"w{part}", (2, WIDTH)), "t", [TakeRows(lambda config, part=part: np.arange(2) + 2 * part)], 0)
        for part in range(2)
    ]
    loaded = [tensor((2, WIDTH), each, 7) for each in (F32, Q8_0)]
    found = save_group(group, loaded)["t"]
    assert found.format is F32
    assert np.array_equal(found.dequantize(), np.concatenate([each.dequantize() for each in loaded]))


@pytest.mark.parametrize("number_format", FORMATS, ids=lambda each: each.name)
def test_a_tensor_for_each_expert(number_format: type[QuantFormat]) -> None:
    mapped = map_tensor(Param("w", (3, 5, WIDTH)), "experts.{e}.t", [Stack()], None)
    assert mapped.sources == ("experts.0.t", "experts.1.t", "experts.2.t")
    assert mapped.source_shape == (5, WIDTH)
    stored = [tensor((5, WIDTH), number_format, seed) for seed in range(3)]
    assert mapped.stack is not None
    whole = mapped.stack.load([mapped.load(each) for each in stored])
    assert whole.shape == (3, 5, WIDTH)
    saved = mapped.save(StoredTensor("w", number_format, whole.shape, whole.blocks.reshape(-1)))
    for found, expected in zip(saved, stored, strict=True):
        assert_same(found, expected)


def test_transposed_experts_in_tensors_of_their_own() -> None:
    mapped = map_tensor(Param("w", (3, 5, 8)), "experts.{e}.t", [Transpose(), Stack()], None)
    weights = np.random.RandomState(8).standard_normal((3, 5, 8)).astype(np.float32)
    found = TensorMapping((mapped,)).save({"w": weights})
    assert all(np.array_equal(found[f"experts.{expert}.t"], weights[expert].T) for expert in range(3))


def test_transforms_that_depend_on_the_file() -> None:
    keep, by_length = Transpose("keep"), Transpose(unless_last=lambda config: 8)
    vector, column = Unflatten(optional=True), Squeeze((1,), to_four=True)
    cases: list[tuple[Transform, tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]] = [
        # transform, parameter, values of a block, stored tensor, what it is expected to be
        (keep, (3, 5, 8), 1, (3, 8, 5), (3, 8, 5)),
        (keep, (3, 5, 8), 32, (3, 5, 8), (3, 5, 8)),
        (by_length, (5, 8), 1, (8, 5), (8, 5)),
        (by_length, (5, 8), 1, (5, 8), (5, 8)),
        (vector, (1, 8), 1, (8,), (8,)),
        (vector, (1, 8), 1, (1, 8), (1, 8)),
        (column, (8,), 1, (8, 1), (8, 1)),
        (column, (8,), 1, (1, 1, 8, 1), (1, 1, 8, 1)),
        (column, (8, 4), 1, (1, 8, 1, 4), (1, 8, 1, 4)),
        (column, (8, 4), 1, (8, 1, 4), (8, 1, 4)),
    ]
    for transform, shape, values, stored, expected in cases:
        mapped = mapping(Example([transform], shape, ())).for_tensor(values, stored)
        assert mapped.source_shape == expected
        assert values > 1 or mapped.load(tensor(stored, F32, 9)).shape == shape


@dataclass(frozen=True)
class Info:
    """A tensor in a file."""

    shape: tuple[int, ...]
    type_name: str = "F32"


def test_axes_that_some_files_have_are_not_written() -> None:
    steps = [Squeeze((0,), optional=True)]
    param = Param("w", (8,))
    assert map_tensor(param, "t", steps, None).is_plain
    for shape in ((8,), (1, 8)):
        mapped = map_tensor(param, "t", steps, None, {"t": Info(shape)})
        assert mapped.source_shape == shape
        assert mapped.load(tensor(shape, F32, 9)).shape == (8,)


def test_blocks_are_transposed_as_floats_or_not_at_all() -> None:
    stored = tensor((3 * WIDTH, WIDTH), Q8_0, 10)
    with pytest.raises(UnsupportedModel, match="cannot transpose blocks of Q8_0"):
        mapping(Example([Transpose()], (WIDTH, 3 * WIDTH), ())).load(stored)
    mapped = mapping(Example([SplitHeads(), Transpose("dequantize")], (3, WIDTH, WIDTH), ()))
    assert mapped.is_dequantizing
    found = mapped.load(stored)
    assert found.format is F32
    heads = stored.dequantize().reshape(3, WIDTH, WIDTH)
    assert np.array_equal(found.dequantize(), heads.swapaxes(1, 2))


def test_floats_out_of_blocks_with_an_order() -> None:
    order = np.random.RandomState(4).permutation(WIDTH).astype(np.int32)
    stored = replace(tensor((2, WIDTH), Q8_0, 11), order=order)
    found = as_f32(stored)
    assert found.order is None
    assert np.array_equal(found.dequantize(), stored.dequantize())
    assert as_f32(found) is found
    assert prod(found.shape) == found.size


@pytest.mark.parametrize("stored", [(1, 1, 6), (1, 6), (6,)])
def test_leading_ones_may_be_any(stored: tuple[int, ...]) -> None:
    values = np.arange(6, dtype=np.float32)
    step = LeadingOnes().bind(None, (1, 6)).for_tensor(1, stored)
    assert step.shape((1, 6)) == stored
    loaded = step.load(tensor_of_values("x", values.reshape(stored)))
    assert loaded.shape == (1, 6)
    assert step.save(loaded).shape == (6,)
    assert LeadingOnes().bind(None, (1, 6)).for_tensor(1, (2, 3)).shape((1, 6)) == (6,)  # which the loader refuses


def test_zeros_stand_in_front_of_a_vector() -> None:
    step, vector = ZerosFirst(), tensor_of_values("x", np.arange(1, 4, dtype=np.float32))
    both = step.load(vector)
    assert both.dequantize().tolist() == [[0, 0, 0], [1, 2, 3]]
    assert step.shape(both.shape) == vector.shape
    assert step.save(both).dequantize().tolist() == [1, 2, 3]


def test_two_tensors_of_one_parameter() -> None:
    stack = StackTwo("attn", "vis_attn")
    assert stack.source_names("blk.1.attn_qkv.weight", 2) == ("blk.1.attn_qkv.weight", "blk.1.vis_attn_qkv.weight")
    random = np.random.default_rng(0)
    values = [random.standard_normal((3, 256)).astype(np.float32) for _ in range(2)]

    def stored(number_format: type[QuantFormat], each: np.ndarray) -> StoredTensor:
        return StoredTensor("x", number_format, each.shape, quantize_tensor(number_format, each).reshape(-1))

    same = stack.load([stored(Q4_K, each) for each in values])
    assert (same.format, same.shape) == (Q4_K, (2, 3, 256))
    mixed = stack.load([stored(Q4_K, values[0]), stored(Q6_K, values[1])])
    assert mixed.format is Q8_0
    wanted = [stored(form, each).dequantize() for form, each in zip((Q4_K, Q6_K), values, strict=True)]
    assert np.abs(mixed.dequantize() - np.stack(wanted)).max() < 0.02
    floats = stack.load([stored(F16, values[0]), tensor_of_values("x", values[1])])
    assert floats.format is F32
