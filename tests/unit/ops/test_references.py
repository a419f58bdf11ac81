"""Each op's numpy meaning against a formula written independently, in plain float64 loops."""

from math import cos, exp, sin, sqrt
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import OpError
from sporelm.models.rotary import rope_table
from sporelm.ops.quantize_rows import E4M3_128, ROW_FORMATS
from sporelm.quant import (
    BF16,
    F16,
    F32,
    FORMATS,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    QuantFormat,
    dequantize_tensor,
    quantize_tensor,
)
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor import dtype

BACKEND = ReferenceBackend()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(array: Any) -> Any:
    return BACKEND.tensor(np.asarray(array))


def ints(*values: Any) -> Any:
    return tensor(np.array(values, np.int32))


def packed(values: np.ndarray, number_format: type[QuantFormat] = F32) -> tuple[Any, np.ndarray]:
    """A weight in a format, and its values as float64."""
    blocks = quantize_tensor(number_format, values)
    held = dequantize_tensor(number_format, blocks, values.shape).astype(np.float64)
    return BACKEND.pack(StoredTensor("w", number_format, values.shape, blocks)), held


def test_add() -> None:
    x, y = random(3, 7), random(3, 7, seed=1)
    assert_close(ops.add(tensor(x), tensor(y)).numpy(), x.astype(np.float64) + y, "f32")


def test_silu_mul() -> None:
    gate, up = random(5, 33) * 20, random(5, 33, seed=1)
    expected = [
        [g / (1 + exp(-g)) * u for g, u in zip(gs, us, strict=True)] for gs, us in zip(gate.tolist(), up, strict=True)
    ]
    assert_close(ops.silu_mul(tensor(gate), tensor(up)).numpy(), expected, "f32")


def test_silu_mul_far_out() -> None:
    """exp overflows float32 below -88: the limit is 0, not NaN."""
    gate = np.array([[-1e4, -89.0, 0.0, 1e4]], np.float32)
    assert_close(ops.silu_mul(tensor(gate), tensor(np.ones_like(gate))).numpy(), [[0, 0, 0, 1e4]], "f32")


@pytest.mark.parametrize("width", [1, 7, 33, 256])
def test_rms_norm(width: int) -> None:
    x, weight = random(4, width), random(width, seed=1)
    expected = []
    for row in x.tolist():
        scale = 1 / sqrt(sum(value * value for value in row) / width + 1e-5)
        expected.append([value * scale * w for value, w in zip(row, weight.tolist(), strict=True)])
    assert_close(ops.rms_norm(tensor(x), tensor(weight), eps=1e-5).numpy(), expected, "f32")


def test_add_rms_norm_is_both() -> None:
    x, y, weight = tensor(random(4, 33)), tensor(random(4, 33, seed=1)), tensor(random(33, seed=2))
    normed, total = ops.add_rms_norm(x, y, weight, eps=1e-6)
    assert_close(total.numpy(), ops.add(x, y).numpy(), "exact")
    assert_close(normed.numpy(), ops.rms_norm(total, weight, eps=1e-6).numpy(), "exact")


@pytest.mark.parametrize("style", ["half", "adjacent"])
def test_rope(style: str) -> None:
    """Each pair turns by position * theta ** (-2 i / d), as a complex number does."""
    heads, dim, theta = 3, 10, 100.0
    x, positions = random(4, heads * dim), [0, 3, 17, 4]
    expected = x.astype(np.float64).reshape(4, heads, dim).copy()
    for row, position in enumerate(positions):
        for head in range(heads):
            for i in range(dim // 2):
                a, b = (i, i + dim // 2) if style == "half" else (2 * i, 2 * i + 1)
                angle = position * theta ** (-2 * i / dim)
                turned = complex(*expected[row, head, [a, b]]) * complex(cos(angle), sin(angle))
                expected[row, head, [a, b]] = turned.real, turned.imag
    result = ops.rope(tensor(x), ints(*positions), tensor(rope_table(32, dim, theta)), head_dim=dim, style=style)
    assert_close(result.numpy(), expected.reshape(x.shape), "f32")


def test_rope_in_two_dimensions() -> None:
    """Each half of a head turns by a position of its own, as a head of its own would (ChatGLM-6B)."""
    x, places = random(4, 3 * 8), np.array([[0, 5], [3, 1], [17, 0], [4, 4]], np.int32)
    table = np.tile(rope_table(32, 4, 10.0).reshape(32, 2, 1, 2), (1, 1, 2, 1)).reshape(32, 8)
    how = {"head_dim": 8, "style": "halves"}
    found = ops.rope(tensor(x), tensor(places), tensor(table), streams=(0, 0, 1, 1), **how).numpy().reshape(4, 3, 8)
    for half, part in enumerate((slice(0, 4), slice(4, 8))):
        alone = np.ascontiguousarray(x.reshape(4, 3, 8)[..., part]).reshape(4, 12)
        turned = ops.rope(
            tensor(alone), ints(*places[:, half]), tensor(rope_table(32, 4, 10.0)), head_dim=4, style="half"
        )
        assert_close(found[..., part], turned.numpy().reshape(4, 3, 4), "exact")


@pytest.mark.parametrize("style", ["half", "adjacent"])
def test_rope_by_streams_takes_each_pairs_own_position(style: str) -> None:
    """Equal positions in all streams are those of plain rope; a pair follows its own stream and no other."""
    x, table, streams = tensor(random(5, 2 * 12)), tensor(rope_table(40, 10, 10.0)), (0, 1, 2, 0, 1)
    how = {"head_dim": 12, "style": style}
    places = np.array([[1, 2, 3], [7, 7, 7], [0, 39, 5], [4, 0, 0], [9, 8, 7]], np.int32)
    found = ops.rope(x, tensor(places), table, streams=streams, **how).numpy().reshape(5, 2, 12)
    for stream in range(3):
        plain = ops.rope(x, tensor(places[:, stream].copy()), table, **how).numpy().reshape(5, 2, 12)
        for pair in [pair for pair in range(5) if streams[pair] == stream]:
            ends = [pair, pair + 5] if style == "half" else [2 * pair, 2 * pair + 1]
            assert_close(found[..., ends], plain[..., ends], "exact")


def test_rope_of_part_of_a_head() -> None:
    x, table = random(2, 2 * 12), tensor(rope_table(8, 8, 10.0))
    result = ops.rope(tensor(x), ints(5, 2), table, head_dim=12, style="half").numpy().reshape(2, 2, 12)
    part = np.ascontiguousarray(x.reshape(2, 2, 12)[..., :8]).reshape(2, 16)
    turned = ops.rope(tensor(part), ints(5, 2), table, head_dim=8, style="half").numpy().reshape(2, 2, 8)
    assert_close(result[..., :8], turned, "exact")
    assert_close(result[..., 8:], x.reshape(2, 2, 12)[..., 8:], "exact")


@pytest.mark.parametrize("number_format", [F32, F16, BF16])
def test_linear_on_float_activations(number_format: type[QuantFormat]) -> None:
    x, (weight, held), bias = random(3, 33), packed(random(7, 33, seed=1), number_format), random(7, seed=2)
    expected = x.astype(np.float64) @ held.T + bias
    assert_close(ops.linear(tensor(x), weight, tensor(bias)).numpy(), expected, "f32")


@pytest.mark.parametrize(
    ("number_format", "run", "width"),
    [(Q8_0, 32, 96), (Q4_1, 32, 96), (Q4_0, 32, 96), (Q5_0, 32, 96), (Q5_1, 32, 96)]
    + [(number_format, 256, 512) for number_format in (Q4_K, Q5_K, Q6_K)],
)
def test_linear_on_int8_activations(number_format: type[QuantFormat], run: int, width: int) -> None:
    """The rows are rounded to 127ths of the greatest of each run before the product."""
    x, (weight, held) = random(3, width), packed(random(5, width, seed=1), number_format)
    rounded = np.zeros((3, width))
    for row in range(3):
        for start in range(0, width, run):
            group = x[row, start : start + run].astype(np.float64)
            scale = np.abs(group).max() / 127
            rounded[row, start : start + run] = np.rint(group / scale) * scale
    assert_close(ops.linear(tensor(x), weight).numpy(), rounded @ held.T, "f32")
    assert np.abs(rounded @ held.T - x @ held.T).max() > 1e-3, "the case must tell rounded from whole rows"


def test_every_format_says_which_activations_it_multiplies() -> None:
    kinds = {name: number_format.activation for name, number_format in FORMATS.items()}
    assert set(kinds.values()) == {"float", *ROW_FORMATS} - {E4M3_128.name}
    # as llama.cpp's vec_dot_type: super-blocks by rows of 256, other blocks by rows of 32
    for name, kind in kinds.items():
        values = FORMATS[name].values
        activation_only = name in ("Q8_1", "Q8_K")
        wanted = "float" if values == 1 or activation_only else "int8/256" if values == 256 else "int8/32"
        assert (name, kind) == (name, wanted)


@pytest.mark.parametrize(("number_format", "activation"), [(Q8_0, "int8/256"), (Q4_K, "int8/32"), (F32, "int8/32")])
def test_rows_rounded_for_other_weights_are_refused(number_format: type[QuantFormat], activation: str) -> None:
    weight, _ = packed(random(5, 256, seed=1), number_format)
    rows = ops.quantize_rows(tensor(random(3, 256)), activation=activation)
    with pytest.raises(OpError, match=f"x is {activation} but weight .* multiplies {number_format.activation}"):
        ops.linear(rows, weight)


def test_an_unknown_kind_of_rows_is_named_with_those_there_are() -> None:
    with pytest.raises(OpError, match=r"activation 'int4' must be one of int8/32, int8/256"):
        ops.quantize_rows(tensor(random(3, 256)), activation="int4")


def test_quantized_rows_are_what_linear_uses() -> None:
    x, (weight, _) = tensor(random(3, 64)), packed(random(5, 64, seed=1), Q8_0)
    assert_close(ops.linear(ops.quantize_rows(x), weight).numpy(), ops.linear(x, weight).numpy(), "exact")


def test_groups_are_their_members() -> None:
    x, weights = tensor(random(3, 32)), tuple(packed(random(5, 32, seed=seed))[0] for seed in (1, 2, 3))
    bias = tensor(random(5, seed=4))
    results = ops.linear_group(x, weights, (None, bias, None))
    for weight, one, result in zip(weights, (None, bias, None), results, strict=True):
        alone = ops.linear(x, weight) if one is None else ops.linear(x, weight, one)
        assert_close(result.numpy(), alone.numpy(), "exact")
    gated = ops.linear_silu_mul(x, weights[0], weights[1])
    assert_close(gated.numpy(), ops.silu_mul(results[0], ops.linear(x, weights[1])).numpy(), "exact")


def test_embedding_and_rows() -> None:
    table, held = packed(random(9, 32), Q8_0)
    assert_close(ops.embedding(ints(8, 0, 8), table).numpy(), held[[8, 0, 8]], "f32")
    x = random(4, 5)
    assert_close(ops.select_rows(tensor(x), ints(3, 3, 0)).numpy(), x[[3, 3, 0]], "exact")
    assert_close(ops.select_columns(tensor(x), ints(4, 0, 0)).numpy(), x[:, [4, 0, 0]], "exact")


def test_argmax_takes_the_lowest_id_and_marks_nan() -> None:
    logits = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [0, np.nan, 9, 1], [-np.inf, -2, -1, -1]], np.float32)
    assert ops.argmax(tensor(logits)).numpy().tolist() == [1, 0, -1, 2]


def test_top_k_orders_ties_by_id() -> None:
    values, ids = ops.top_k(tensor(np.array([[1, 3, 0, 3, 2], [7, 7, 7, 7, 8]], np.float32)), k=3)
    assert ids.numpy().tolist() == [[1, 3, 4], [4, 0, 1]]
    assert values.numpy().tolist() == [[3, 3, 2], [8, 7, 7]]


def attention_by_hand(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, heads: int, window: int | None
) -> np.ndarray:
    """The last positions of a sequence: q [rows, heads * d], keys and values [length, kv_heads, d]; in float64."""
    length, kv_heads, dim = keys.shape
    out = np.zeros((len(q), heads, dim))
    for row in range(len(q)):
        position = length - len(q) + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            group = head * kv_heads // heads
            query = q[row].reshape(heads, dim)[head].astype(np.float64)
            scores = [float(query @ keys[i, group]) / sqrt(dim) for i in range(first, position + 1)]
            weights = [exp(score - max(scores)) for score in scores]
            mixed = sum(
                w * values[i, group].astype(np.float64)
                for w, i in zip(weights, range(first, position + 1), strict=True)
            )
            out[row, head] = mixed / sum(weights)
    return out.reshape(len(q), heads * dim)


@pytest.mark.parametrize("window", [None, 1, 5, 64, 100])
def test_attention_over_pages(window: int | None) -> None:
    """Three sequences of different lengths over scattered pages, one of them without rows in this step."""
    heads, kv_heads, dim = 6, 2, 4
    lengths, counts, pages = [70, 3, 130], [5, 0, 1], [[4, 1, 0], [2, 0, 0], [0, 5, 3]]
    cache = BACKEND.allocate_pages(6, [(kv_heads, dim)], dtype.F32)[0]
    kept = []
    for sequence, length in enumerate(lengths):
        keys, values = random(length, kv_heads * dim, seed=sequence), random(length, kv_heads * dim, seed=9 + sequence)
        slots = [pages[sequence][i // 64] * 64 + i % 64 for i in range(length)]
        ops.store_kv(tensor(keys), tensor(values), cache, ints(*slots))
        kept.append((keys.reshape(length, kv_heads, dim), values.reshape(length, kv_heads, dim)))
    q = random(sum(counts), heads * dim, seed=20)
    starts = np.cumsum([0, *counts])
    result = ops.attention(
        tensor(q), cache, ints(*starts), ints(*lengths), ints(*pages), scale=dim**-0.5, window=window
    ).numpy()
    for sequence, (keys, values) in enumerate(kept):
        rows = slice(starts[sequence], starts[sequence + 1])
        assert_close(result[rows], attention_by_hand(q[rows], keys, values, heads, window), "f32")


def test_a_sink_is_a_key_of_value_zero() -> None:
    """A score beside the others, which takes its share of the weights and gives nothing."""
    length, heads, dim = 90, 3, 4
    cache = BACKEND.allocate_pages(2, [(1, dim)], dtype.F32)[0]
    keys, values, q = random(length, dim), random(length, dim, seed=2), random(1, heads * dim, seed=3)
    ops.store_kv(tensor(keys), tensor(values), cache, ints(*range(length)))
    where = (ints(0, 1), ints(length), ints([0, 1]))
    sinks = np.array([-3.0, 2.0, 60.0], np.float32)
    found = ops.attention(tensor(q), cache, *where, tensor(sinks), scale=0.5).numpy()
    scores = 0.5 * q.reshape(heads, dim).astype(np.float64) @ keys.T.astype(np.float64)
    every = np.exp(np.concatenate([scores, sinks[:, None]], axis=1))
    weights = every / every.sum(axis=1, keepdims=True)
    assert_close(found, (weights[:, :-1] @ values).reshape(1, -1), "f32")


def test_slopes_lower_scores_with_distance() -> None:
    """Rows of a prompt, each from its own position (Press et al. 2022, equation of section 3)."""
    length, heads, dim, rows = 90, 3, 4, 5
    cache = BACKEND.allocate_pages(2, [(1, dim)], dtype.F32)[0]
    keys, values, q = random(length, dim), random(length, dim, seed=2), random(rows, heads * dim, seed=3)
    ops.store_kv(tensor(keys), tensor(values), cache, ints(*range(length)))
    slopes = np.array([0.0, 0.01, 0.5], np.float32)
    where = (ints(0, rows), ints(length), ints([0, 1]))
    found = ops.attention(tensor(q), cache, *where, None, tensor(slopes), scale=0.5).numpy()
    for row in range(rows):
        here = length - rows + row
        for head in range(heads):
            query = q.reshape(rows, heads, dim)[row, head].astype(np.float64)
            every = np.array([exp(0.5 * query @ keys[p] - slopes[head] * (here - p)) for p in range(here + 1)])
            expected = every / every.sum() @ values[: here + 1]
            assert_close(found[row, head * dim : (head + 1) * dim], expected, "f32")


def test_a_softcap_bounds_scores() -> None:
    length, dim = 70, 4
    cache = BACKEND.allocate_pages(2, [(1, dim)], dtype.F32)[0]
    keys, values, q = 9 * random(length, dim), random(length, dim, seed=2), random(1, dim, seed=3)
    ops.store_kv(tensor(keys), tensor(values), cache, ints(*range(length)))
    found = ops.attention(tensor(q), cache, ints(0, 1), ints(length), ints([0, 1]), scale=1.0, softcap=3.0).numpy()
    every = np.exp(3 * np.tanh(q.astype(np.float64) @ keys.T / 3))
    assert_close(found, every / every.sum() @ values, "f32")


def test_rope_store_is_its_parts() -> None:
    q, k, v, table = (
        tensor(random(3, 16)),
        tensor(random(3, 8)),
        tensor(random(3, 8, seed=5)),
        tensor(rope_table(9, 4, 10.0)),
    )
    where, slots = ints(6, 7, 8), ints(70, 1, 127)
    together, apart = (
        BACKEND.allocate_pages(2, [(2, 4)], dtype.F32)[0],
        BACKEND.allocate_pages(2, [(2, 4)], dtype.F32)[0],
    )
    turned = ops.rope_store(q, k, v, where, table, together, slots, head_dim=4, style="half")
    ops.store_kv(ops.rope(k, where, table, head_dim=4, style="half"), v, apart, slots)
    assert_close(turned.numpy(), ops.rope(q, where, table, head_dim=4, style="half").numpy(), "exact")
    assert_close(BACKEND.export_pages(together, [0, 1]), BACKEND.export_pages(apart, [0, 1]), "exact")
