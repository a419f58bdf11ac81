"""Cases of ops on rows: norms, element by element, embedding, rope, picking rows and tokens, rounding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import FORMAT_NAMES, Case, On, case, width_of
from sporelm.evals.conformance.random_weights import ALIKE
from sporelm.ops.activation import KINDS
from sporelm.quant import FORMATS

TOKENS = (1, 2, 7, 16, 17, 33, 121)
WIDTHS = (1, 7, 16, 33, 96, 320)
VOCABS = (1, 5, 16, 33, 1003)
COMMON_KINDS = ("gelu", "gelu_tanh")  # tried on every target
IDS = (0, 1, 31, 32, 6, 6)
HEAD_DIMS = (2, 16, 26, 64, 80, 128)
# Which of three positions each pair takes: Qwen2-VL's sections, Qwen3-VL's and Qwen3.5's turns, ChatGLM-6B's halves.
STREAMS = {
    "sections of 16, 24 and 24": (128, "half", (0,) * 16 + (1,) * 24 + (2,) * 24),
    "turns of 24, 20 and 20": (128, "half", (0, 1, 2) * 20 + (0,) * 4),
    "turns of 11, 11 and 10 of 64": (256, "half", (0, 1, 2) * 10 + (0, 1)),
    "odd sections": (26, "adjacent", (2,) * 3 + (0,) * 5 + (1,) * 5),
    "two dimensions": (128, "halves", (0,) * 32 + (1,) * 32),
    "two dimensions of 24": (30, "halves", (0,) * 6 + (2,) * 6),
}


def norm(on: On, tokens: int, width: int, scale: float) -> Any:
    return ops.rms_norm(on.rows(tokens, width, scale=scale), on.tensor(on.values(width)), eps=1e-5)


def add_norm(on: On, tokens: int, width: int) -> Any:
    return ops.add_rms_norm(on.rows(tokens, width), on.rows(tokens, width), on.tensor(on.values(width)), eps=1e-6)


def head_norm(on: On, tokens: int, heads: int, head_dim: int) -> Any:
    return ops.rms_norm(on.rows(tokens, heads * head_dim), on.tensor(on.values(head_dim)), eps=1e-5)


def own_head_norm(on: On, tokens: int, heads: int, head_dim: int) -> Any:
    return ops.rms_norm(on.rows(tokens, heads * head_dim), on.tensor(on.values(heads, head_dim)), eps=1e-5)


def joined(on: On, tokens: int, *widths: int) -> Any:
    return ops.join_columns(*(on.rows(tokens, width) for width in widths))


def slots_joined(on: On, tokens: int, count: int, width: int) -> Any:
    wanted = on.random.permutation(count * width)
    return ops.join_slots(on.tensor(on.values(tokens, count, width)), on.ints(wanted))


def slots_cut(on: On, tokens: int, count: int, width: int) -> Any:
    return ops.cut_slots(on.rows(tokens, count * width), on.ints(on.random.permutation(count * width)), k=count)


def layer_norm(on: On, tokens: int, width: int, scale: float, shift: float, count: int) -> Any:
    x = on.tensor(on.values(tokens, width) * np.float32(scale) + np.float32(shift))
    vectors = [on.tensor(on.values(width)) for _ in range(count)]
    return ops.layer_norm(x, *vectors, eps=1e-5)


def head_layer_norm(on: On, tokens: int, heads: int, head_dim: int) -> Any:
    x = on.tensor(on.values(tokens, heads * head_dim) + np.float32(3))
    return ops.layer_norm(x, on.tensor(on.values(heads, head_dim)), eps=1e-5)


def add_layer_norm(on: On, tokens: int, width: int, count: int) -> Any:
    vectors = [on.tensor(on.values(width)) for _ in range(count)]
    return ops.add_layer_norm(on.rows(tokens, width), on.rows(tokens, width), *vectors, eps=1e-6)


def each(on: On, name: str, tokens: int, width: int, spread: float, **options: Any) -> Any:
    count = 2 if name == "activate_mul" else 1
    return ops.ALL[name](*(on.rows(tokens, width, scale=spread) for _ in range(count)), **options)


def scaled_by(on: On, tokens: int, width: int) -> Any:
    return ops.scale_by(on.rows(tokens, width), on.rows(1))


def learned(on: On, tokens: int, width: int, layer: int, scale: float) -> Any:
    numbers = [on.tensor(on.values(3, 1)) for _ in range(2)]
    numbers += [on.tensor(np.array(each, np.float32)) for each in ([0.5, 0.3, -0.2], [-1e-6, -1.0, 0.4])]
    return ops.xielu(on.rows(tokens, width, scale=scale), *numbers, layer=layer)


def pairwise(on: On, name: str, tokens: int, width: int, scale: float) -> Any:
    return ops.ALL[name](on.rows(tokens, width, scale=scale), on.rows(tokens, width))


def embedded(on: On, format_name: str, width: int) -> Any:
    return ops.embedding(on.ints(IDS), on.weight(format_name, 33, width))


def rotated(on: On, tokens: int, heads: int, head_dim: int, rotary: int, style: str) -> Any:
    table = rope_table(300, rotary)
    positions = on.ints(np.arange(tokens) * 37 % 300)
    x = on.rows(tokens, heads * head_dim)
    return ops.rope(x, positions, on.tensor(table), head_dim=head_dim, style=style)


def rotated_by_streams(on: On, tokens: int, heads: int, head_dim: int, streams: tuple[int, ...], style: str) -> Any:
    """Each row has three positions."""
    positions = on.ints(np.arange(tokens)[:, None] * [37, 11, 5] % 300)
    x, table = on.rows(tokens, heads * head_dim), on.tensor(rope_table(300, 2 * len(streams)))
    return ops.rope(x, positions, table, head_dim=head_dim, style=style, streams=streams)


def rope_table(context: int, rotary: int) -> np.ndarray:
    """Cosines, then sines, float32 [context, rotary]."""
    angles = np.arange(context)[:, None] / 10000 ** (np.arange(0, rotary, 2) / rotary)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def selected(on: On, tokens: int, width: int) -> Any:
    wanted = on.random.integers(0, tokens, max(1, tokens // 2))
    return ops.select_rows(on.rows(tokens, width), on.ints(wanted))


def columns_selected(on: On, tokens: int, width: int) -> Any:
    wanted = on.random.integers(0, width, max(1, width - 1))
    return ops.select_columns(on.rows(tokens, width), on.ints(wanted))


def logits(on: On, rows: int, vocab: int, kind: str) -> np.ndarray:
    """Random scores: `plain`, with many `ties`, with `-inf` as masks leave them, or with `NaN`."""
    values = on.values(rows, vocab)
    if kind == "ties":
        values = np.round(values * 2)
    if kind == "-inf":
        values[:, on.random.permutation(vocab)[: vocab * 9 // 10]] = -np.inf
        values[0] = -np.inf
    if kind == "NaN":
        values[::2, on.random.integers(0, vocab)] = np.nan
    return values


def arg_max(on: On, rows: int, vocab: int, kind: str) -> Any:
    return ops.argmax(on.tensor(logits(on, rows, vocab, kind)))


def top(on: On, rows: int, vocab: int, k: int, kind: str) -> Any:
    return ops.top_k(on.tensor(logits(on, rows, vocab, kind)), k=k)


def rounded(on: On, tokens: int, width: int, activation: str, kind: str) -> Any:
    """Return the rounded values of quantize_rows as products read them: a product with an identity matrix."""
    x, run = on.values(tokens, width), int(activation.partition("/")[2])
    if kind == "halves":  # peak 127: the integers are the values, ties to even
        x = np.round(x * 16) / 2
        x[:, ::run] = 127
    if kind == "zeros":
        x[:, :run] = 0
    if kind == "ends":  # the greatest value first, or last, negative
        x[0, 0] = x[1, -1] = -100
    rows = ops.quantize_rows(on.tensor(x), activation=activation)
    return ops.linear(rows, identity(on, "Q8_0" if run == 32 else "Q6_K", width))


def identity(on: On, format_name: str, width: int) -> Any:
    """A matrix of ones on its diagonal, without rounding: [width, width]."""
    kind = FORMATS[format_name]
    blocks = np.zeros((width, width // kind.values, kind.nbytes), np.uint8)
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    if format_name == "Q6_K":
        blocks[..., 128:192] = 0xAA  # the upper bits of 32, which stands for 0
    for row in range(width):
        block = blocks[row, row // kind.values]
        if format_name == "Q8_0":
            block[:2], block[2 + row % 32] = one, 1
        else:  # of each half of 128 values the first and third 32 lie in low nibbles, the others in high ones
            half, rest = divmod(row % 256, 128)
            quarter, column = divmod(rest, 32)
            block[64 * half + 32 * (quarter % 2) + column] = 16 if quarter > 1 else 1
            block[192 + row % 256 // 16], block[208:210] = 1, one
    return on.pack(kind, (width, width), blocks)


def cases() -> Iterator[Case]:
    yield from plain_cases()
    for format_name in FORMAT_NAMES:
        widths = (
            tuple(width_of(format_name, blocks) for blocks in (1, 3, 10))
            if FORMATS[format_name].values > 1
            else (1, 7, 33, 96)
        )
        for width in widths:
            common = format_name not in ALIKE
            yield case(
                "embedding", f"{format_name} width {width}", embedded, format_name, width, exact=True, common=common
            )
    for head_dim in HEAD_DIMS:
        for style in ("half", "adjacent", "halves"):
            for rotary in sorted({2, head_dim // 4 * 2 or 2, head_dim}):
                if style == "halves" and rotary % 4:
                    continue
                for tokens, heads in ((1, 3), (7, 5)):
                    name = f"{style} {rotary} of {head_dim}, {heads} heads x{tokens}"
                    yield case("rope", name, rotated, tokens, heads, head_dim, rotary, style)
    for name, (head_dim, style, streams) in STREAMS.items():
        for tokens in (1, 7):
            yield case("rope", f"{name} x{tokens}", rotated_by_streams, tokens, 3, head_dim, streams, style)
    for kind in ("plain", "ties", "-inf", "NaN"):
        for vocab in VOCABS:
            yield case("argmax", f"{kind} of {vocab}", arg_max, 5, vocab, kind, exact=True)
            if kind != "NaN":
                for k in sorted({1, min(40, vocab), vocab if vocab < 100 else 64}):
                    yield case("top_k", f"{kind} {k} of {vocab}", top, 5, vocab, k, kind, exact=True)
    for kind in ("plain", "halves", "zeros", "ends"):
        for activation, widths in (("int8/32", (32, 96, 320)), ("int8/256", (256, 768))):
            for width in widths:
                name = f"{activation} {kind} width {width}"
                yield case("quantize_rows", name, rounded, 7, width, activation, kind, exact=True)


def plain_cases() -> Iterator[Case]:
    for tokens in TOKENS:
        for width in WIDTHS:
            name = f"{tokens}x{width}"
            yield case("rms_norm", name, norm, tokens, width, 1.0)
            yield case("add_rms_norm", name, add_norm, tokens, width)
            yield case("add", name, pairwise, "add", tokens, width, 1.0, exact=True)
            yield case("silu_mul", name, pairwise, "silu_mul", tokens, width, 1.0)
            yield case("select_rows", name, selected, tokens, width, exact=True)
            yield case("select_columns", name, columns_selected, tokens, width, exact=True)
    for tokens, widths in ((1, (7, 1)), (2, (16, 33, 5)), (33, (320, 64, 48))):
        yield case("join_columns", f"{tokens} of {widths}", joined, tokens, *widths, exact=True)
    for tokens, count, width in ((1, 1, 3), (2, 3, 16), (7, 2, 33), (33, 4, 64)):
        yield case("join_slots", f"{tokens} of {count}x{width}", slots_joined, tokens, count, width, exact=True)
        yield case("cut_slots", f"{tokens} of {count}x{width}", slots_cut, tokens, count, width, exact=True)
    for tokens, width in ((1, 7), (2, 16), (7, 33), (33, 320)):
        for count, vectors in enumerate((" bare", "", " bias")):
            name = f"{tokens}x{width}{vectors}"
            yield case("layer_norm", name, layer_norm, tokens, width, 1.0, 3.0, count)
            yield case("add_layer_norm", name, add_layer_norm, tokens, width, count)
        for kind in KINDS:
            for name in ("activate", "activate_mul"):
                work = partial(each, kind=kind)
                shape = f"{kind} {tokens}x{width}"
                yield case(name, shape, work, name, tokens, width, 3.0, common=kind in COMMON_KINDS)
        yield case("scale", f"{tokens}x{width}", partial(each, factor=0.37), "scale", tokens, width, 1.0)
        for layer in range(3):
            name = f"of layer {layer} {tokens}x{width}"
            yield case("xielu", name, learned, tokens, width, layer, 4.0, common=layer == 1)
        yield case("scale_by", f"{tokens}x{width}", scaled_by, tokens, width, exact=True)
        yield case("clip", f"{tokens}x{width}", partial(each, limit=0.8), "clip", tokens, width, 1.0, exact=True)
        yield case("softcap", f"{tokens}x{width}", partial(each, cap=30.0), "softcap", tokens, width, 40.0)
    for kind in KINDS:
        for spread in (1e-30, 1e-3, 100.0, 0.0):
            name = f"{kind} of values of {spread:g}"
            common = kind in COMMON_KINDS
            yield case("activate", name, partial(each, kind=kind), "activate", 2, 33, spread, common=common)
    for heads, head_dim in ((1, 2), (3, 10), (5, 16), (4, 26), (2, 128)):
        for tokens in (1, 7):
            name, common = f"{heads} heads of {head_dim} x{tokens}", head_dim in (10, 128)
            yield case("rms_norm", name, head_norm, tokens, heads, head_dim, common=common)
            yield case("rms_norm", f"{name}, each its own", own_head_norm, tokens, heads, head_dim, common=common)
            yield case("layer_norm", name, head_layer_norm, tokens, heads, head_dim, common=common)
    yield case("layer_norm", "far from zero", layer_norm, 7, 33, 1e-2, 50.0, 2)
    for scale in (1e15, 1e-15, 1e-30, 0.0):
        yield case("rms_norm", f"values of {scale:g}", norm, 7, 33, scale)
    for scale in (10.0, 100.0, 1e4, 1e-30, 0.0):
        yield case("silu_mul", f"gates of {scale:g}", pairwise, "silu_mul", 7, 33, scale)
