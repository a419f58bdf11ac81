"""Runs each back-end's ops on small random values and compares the results with the ops' numpy reference.

What `spore doctor --conformance` shows: a short check on a user's machine. The tests go further.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from sporelm import ops
from sporelm.backends.backend_registry import all_backends, open_backend
from sporelm.backends.protocol import Backend, Missing
from sporelm.evals.altup_cases import altup_cases
from sporelm.evals.attention_cases import attention_cases
from sporelm.evals.conformance_case import ConformanceCase, random_values
from sporelm.evals.latent_cases import latent_cases
from sporelm.evals.recurrent_cases import recurrent_cases
from sporelm.evals.sampling_cases import sampling_cases
from sporelm.evals.sparse_cases import sparse_cases
from sporelm.evals.text_cases import text_cases
from sporelm.ops.activation import KINDS
from sporelm.ops.quantize_rows import INT8_32, ROW_FORMATS
from sporelm.quant import FORMATS, Q6_K, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.random_blocks import make_random_blocks
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.tensor import Tensor

TOLERANCE = 1e-5  # of the greatest absolute value of the result
WIDTH = 96  # whole blocks of 32, and no multiple of any vector tile
SUPER_WIDTH = 768  # the same for blocks of 256
OUT = 33


def check_all(only: str | None = None) -> list[dict[str, str]]:
    """Each case on each back-end that can run here: back-end, case, state (equal, differs, fails), error.

    With `only`, on that one. Raises BackendError if it cannot run.
    """
    reference = open_backend("reference")
    rows = []
    for name, backend in ({only: open_backend(only)} if only else all_backends()).items():
        if name == "reference" or isinstance(backend, Missing):
            continue
        rows += [check(name, case, backend, reference) for case in cases()]
        backend.close()
    return rows


def check(name: str, case: ConformanceCase, backend: Backend, reference: Backend) -> dict[str, str]:
    """One case on one back-end."""
    row = {"backend": name, "case": case.name}
    expected = arrays(case.run(reference))
    try:
        found = arrays(case.run(backend))
    except Exception as error:  # the row reports any error of a third-party back-end
        return row | {"state": "fails", "error": f"{type(error).__name__}: {error}"}
    error_share = max(difference(*pair) for pair in zip(found, expected, strict=True))
    return row | {"state": "equal" if error_share <= TOLERANCE else "differs", "error": f"{error_share:.1e}"}


def arrays(results: Any) -> list[np.ndarray]:
    """The results of an op as arrays."""
    every = results if isinstance(results, tuple) else (results,)
    return [result if isinstance(result, np.ndarray) else result.numpy() for result in every]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Greatest difference, as a share of the greatest expected value; infinite for another shape or NaN."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0)) / scale


# Formats with integer kernels or float kernels, and Q8_1 for the formats that every back-end widens.
FORMS = [
    form for form in FORMATS.values() if form.activation in ROW_FORMATS or form.name in ("F32", "F16", "BF16", "Q8_1")
]


# What model files are converted to.
CONVERTED = [form for form in FORMATS.values() if form.can_quantize and form.name not in ("F32", "F64", "Q8_1", "Q8_K")]

# What differs from others of these by how blocks of the file are packed, or nearly: one kind of product is tried.
ALIKE = frozenset(
    ("MXFP4", "Q2_0", "Q2_K", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS")
)


def width_of(form: type[QuantFormat]) -> int:
    """Columns of the matrices of a number format."""
    return WIDTH if WIDTH % form.values == 0 else SUPER_WIDTH


def blocks_of(form: type[QuantFormat], matrix: np.ndarray) -> np.ndarray:
    """Return blocks of a float32 matrix; for read-only formats random blocks of the same magnitude."""
    if form.can_quantize:
        return quantize_tensor(form, matrix)
    runs = np.ascontiguousarray(matrix).reshape(-1, form.values)
    raw = np.random.default_rng(crc32(runs.tobytes())).integers(0, 256, (len(runs), form.nbytes), np.uint8)
    return make_random_blocks(form, raw, runs)


def weight(backend: Backend, form: type[QuantFormat], out: int = OUT, seed: int = 1) -> Tensor:
    """A random matrix [out, width of the format], packed."""
    shape = (out, width_of(form))
    return backend.pack(StoredTensor("weight", form, shape, blocks_of(form, random_values(*shape, seed=seed))))


def cases() -> Iterator[ConformanceCase]:
    """Every op, with odd sizes; products and look-ups in every number format."""
    for tokens in (1, 7, 33):
        yield ConformanceCase("rms_norm", f"{tokens}", partial(norm, tokens=tokens))
        yield ConformanceCase("add_rms_norm", f"{tokens}", partial(add_norm, tokens=tokens))
        yield ConformanceCase("rms_norm", f"of heads {tokens}", partial(norm, tokens=tokens, size=WIDTH // 4))
        for op in (ops.layer_norm, ops.add_layer_norm):
            for count, name in enumerate(("bare", "", "with a bias")):
                yield ConformanceCase(
                    op.name, f"{tokens} {name}".strip(), partial(layer_norm, op=op, tokens=tokens, count=count)
                )
        yield ConformanceCase("layer_norm", f"of heads {tokens}", partial(layer_norm_of_heads, tokens=tokens))
        for kind in KINDS:
            yield ConformanceCase(
                "activate", f"{kind} {tokens}", partial(each, op=ops.activate, tokens=tokens, kind=kind)
            )
            yield ConformanceCase(
                "activate_mul", f"{kind} {tokens}", partial(elementwise, op=ops.activate_mul, tokens=tokens, kind=kind)
            )
        yield ConformanceCase("scale", f"{tokens}", partial(each, op=ops.scale, tokens=tokens, factor=0.37))
        yield ConformanceCase("xielu", f"{tokens}", partial(xielu, tokens=tokens))
        yield ConformanceCase("scale_by", f"{tokens}", partial(scale_by, tokens=tokens))
        yield ConformanceCase("clip", f"{tokens}", partial(each, op=ops.clip, tokens=tokens, limit=0.5))
        yield ConformanceCase("softcap", f"{tokens}", partial(each, op=ops.softcap, tokens=tokens, cap=2.0))
        yield ConformanceCase("add", f"{tokens}", partial(elementwise, op=ops.add, tokens=tokens))
        yield ConformanceCase("silu_mul", f"{tokens}", partial(elementwise, op=ops.silu_mul, tokens=tokens))
        yield ConformanceCase("select_rows", f"{tokens}", partial(select_rows, tokens=tokens))
        yield ConformanceCase("join_columns", f"{tokens}", partial(join_columns, tokens=tokens))
        yield ConformanceCase("join_slots", f"{tokens}", partial(join_slots, tokens=tokens))
        yield ConformanceCase("cut_slots", f"{tokens}", partial(cut_slots, tokens=tokens))
        yield ConformanceCase("select_columns", f"{tokens}", partial(select_columns, tokens=tokens))
        for activation in ROW_FORMATS:
            name = f"{activation} {tokens}"
            yield ConformanceCase("quantize_rows", name, partial(quantize_rows, tokens=tokens, activation=activation))
        for form in FORMS:
            yield ConformanceCase("linear", f"{form.name} {tokens}", partial(linear, form=form, tokens=tokens))
            if form.name in ALIKE:
                continue
            yield ConformanceCase("linear_group", f"{form.name} {tokens}", partial(group, form=form, tokens=tokens))
            yield ConformanceCase("linear_silu_mul", f"{form.name} {tokens}", partial(gated, form=form, tokens=tokens))
            if form.name in ("F32", "Q8_0", "Q4_K"):  # a kernel of each kind: only its last step differs from silu's
                name = f"{form.name} {tokens}"
                yield ConformanceCase("linear_activate_mul", name, partial(gelu_gated, form=form, tokens=tokens))
    yield from expert_cases()
    for tokens in (1, 7, 33):
        yield ConformanceCase("add_lora", f"{tokens}", partial(add_lora, tokens=tokens))
    for form in CONVERTED:
        yield ConformanceCase("quantize_blocks", form.name, partial(quantize_blocks, form=form))
        if form.can_weigh:
            name = f"{form.name} with importance"
            yield ConformanceCase("quantize_blocks", name, partial(quantize_blocks, form=form, weighted=True))
        yield ConformanceCase("dequantize_blocks", form.name, partial(dequantize_blocks, form=form))
    yield ConformanceCase("count_nonfinite", "", count_nonfinite)
    for form in FORMS:
        yield ConformanceCase("embedding", form.name, partial(embedding, form=form))
    yield ConformanceCase("embedding", "filled", partial(embedding, form=FORMS[0], fills=True))
    yield from attention_cases()
    yield from latent_cases()
    yield from sparse_cases()
    yield from recurrent_cases()
    yield from altup_cases()
    yield from text_cases()
    yield from sampling_cases()
    yield ConformanceCase("argmax", "", lambda backend: ops.argmax(backend.tensor(random_values(5, 1001))))
    yield ConformanceCase("top_k", "", lambda backend: ops.top_k(backend.tensor(random_values(5, 1001)), k=40))


def expert_cases() -> Iterator[ConformanceCase]:
    """Routing of every kind; products in every number format."""
    for name, options in ROUTES.items():
        yield ConformanceCase("route", name, partial(route, options=options))
    yield ConformanceCase("route", "factors", partial(route, options=ROUTES["softmax"], factored=True))
    for tokens in (1, 7, 33):
        yield ConformanceCase("split_zero_experts", f"{tokens}", partial(run_split_zero_experts, tokens=tokens))
        yield ConformanceCase("combine_experts", f"{tokens}", partial(combine_experts, tokens=tokens))
        yield ConformanceCase("clamped_swiglu", f"{tokens}", partial(clamped_swiglu, tokens=tokens))
        for form in FORMS:
            if form.name in ALIKE and tokens > 1:
                continue
            name = f"{form.name} {tokens}"
            yield ConformanceCase("linear_experts", name, partial(linear_experts, form=form, tokens=tokens))
            if form.name in ("F32", "Q4_K"):
                product = partial(linear_experts_silu_mul, form=form, tokens=tokens)
                yield ConformanceCase("linear_experts_silu_mul", name, product)


ROUTES: dict[str, dict[str, Any]] = {
    "softmax": {"k": 3, "renormalize": True},
    "of chosen": {"k": 3, "scores": "softmax_of_chosen"},
    "of near": {"k": 3, "scores": "softmax_of_near", "near": 0.3},
    "sigmoid of chosen": {"k": 3, "scores": "sigmoid_of_chosen", "scale": 1.5},
    "groups": {"k": 3, "scores": "sigmoid", "groups": 4, "top_groups": 2, "group_score": "sum_of_two", "scale": 2.5},
}
EXPERTS = 5


def route(backend: Backend, *, options: dict[str, Any], factored: bool = False) -> Any:
    vectors = [backend.tensor(random_values(20, seed=seed) * np.float32(0.1)) for seed in range(1 + factored)]
    return ops.route(backend.tensor(random_values(7, 20)), *vectors, **options)


def choose_experts(tokens: int) -> np.ndarray:
    """Two experts a token; the second is that of all but one."""
    first = np.arange(tokens, dtype=np.int32) % (EXPERTS - 1)
    return np.stack([first, np.where(np.arange(tokens) == 2, (first + 1) % (EXPERTS - 1), EXPERTS - 1)], axis=1)


def experts(backend: Backend, form: type[QuantFormat], seed: int = 1) -> Tensor:
    """Random matrices [EXPERTS, OUT, width of the format], packed."""
    width = width_of(form)
    blocks = blocks_of(form, random_values(EXPERTS * OUT, width, seed=seed))
    return backend.pack(StoredTensor("experts", form, (EXPERTS, OUT, width), blocks))


def linear_experts(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    """One row a token, then one for each expert with a bias."""
    ids = backend.tensor(choose_experts(tokens).astype(np.int32))
    weights = experts(backend, form)
    width = width_of(form)
    bias = backend.tensor(random_values(EXPERTS, OUT))
    shared = ops.linear_experts(backend.tensor(random_values(tokens, width)), weights, ids)
    return shared, ops.linear_experts(backend.tensor(random_values(tokens, 2, width)), weights, ids, bias)


def linear_experts_silu_mul(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    gate, up = (experts(backend, form, seed) for seed in (1, 2))
    ids = backend.tensor(choose_experts(tokens).astype(np.int32))
    return ops.linear_experts_silu_mul(backend.tensor(random_values(tokens, width_of(form))), gate, up, ids)


def run_split_zero_experts(backend: Backend, *, tokens: int) -> Any:
    ids = (np.arange(tokens * 3, dtype=np.int32).reshape(tokens, 3) * 5) % 9
    return ops.split_zero_experts(backend.tensor(random_values(tokens, 3)), backend.tensor(ids), experts=4)


def combine_experts(backend: Backend, *, tokens: int) -> Any:
    return ops.combine_experts(
        backend.tensor(random_values(tokens, 3, WIDTH)), backend.tensor(random_values(tokens, 3))
    )


def clamped_swiglu(backend: Backend, *, tokens: int) -> Any:
    gate, up = (backend.tensor(random_values(tokens, WIDTH, seed=seed) * 6) for seed in (0, 1))
    return ops.clamped_swiglu(gate, up, alpha=1.702, limit=7.0)


def norm(backend: Backend, *, tokens: int, size: int = WIDTH) -> Any:
    return ops.rms_norm(backend.tensor(random_values(tokens, WIDTH)), backend.tensor(random_values(size)), eps=1e-5)


def layer_norm(backend: Backend, *, op: ops.Op, tokens: int, count: int) -> Any:
    """`count` vectors: none, a scale, or a bias too."""
    rows = [
        backend.tensor(random_values(tokens, WIDTH, seed=seed)) for seed in range(2 if op is ops.add_layer_norm else 1)
    ]
    return op(*rows, *(backend.tensor(random_values(WIDTH, seed=seed)) for seed in range(count)), eps=1e-5)


def layer_norm_of_heads(backend: Backend, *, tokens: int) -> Any:
    return ops.layer_norm(
        backend.tensor(random_values(tokens, WIDTH)), backend.tensor(random_values(4, WIDTH // 4)), eps=1e-5
    )


def each(backend: Backend, *, op: ops.Op, tokens: int, **options: Any) -> Any:
    return op(backend.tensor(random_values(tokens, WIDTH)), **options)


def xielu(backend: Backend, *, tokens: int) -> Any:
    """The numbers of the second of three layers."""
    numbers = [backend.tensor(random_values(3, 1, seed=seed)) for seed in (2, 3)]
    numbers += [backend.tensor(np.array([0.1, each, 0.2], np.float32)) for each in (0.5, -1e-6)]
    return ops.xielu(backend.tensor(random_values(tokens, WIDTH) * np.float32(3)), *numbers, layer=1)


def scale_by(backend: Backend, *, tokens: int) -> Any:
    return ops.scale_by(backend.tensor(random_values(tokens, WIDTH)), backend.tensor(random_values(1)))


def add_norm(backend: Backend, *, tokens: int) -> Any:
    rows = [backend.tensor(random_values(tokens, WIDTH, seed=seed)) for seed in (0, 1)]
    return ops.add_rms_norm(*rows, backend.tensor(random_values(WIDTH)), eps=1e-5)


def elementwise(backend: Backend, *, op: ops.Op, tokens: int, **options: Any) -> Any:
    return op(*(backend.tensor(random_values(tokens, WIDTH, seed=seed)) for seed in (0, 1)), **options)


def linear(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    return ops.linear(backend.tensor(random_values(tokens, width_of(form))), weight(backend, form))


def group(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    """Three products of one x, the second with a bias."""
    weights = tuple(weight(backend, form, out, seed) for out, seed in ((OUT, 1), (OUT + 8, 2), (7, 3)))
    biases = (None, backend.tensor(random_values(OUT + 8)), None)
    return ops.linear_group(backend.tensor(random_values(tokens, width_of(form))), weights, biases)


def add_lora(backend: Backend, *, tokens: int) -> Any:
    """Three adapters, the second without matrices for this product; some rows have none."""
    which = np.arange(tokens, dtype=np.int32) % 4 - 1
    a = (backend.tensor(random_values(4, WIDTH)), None, backend.tensor(random_values(9, WIDTH)))
    b = (backend.tensor(random_values(4, OUT)), None, backend.tensor(random_values(9, OUT)))
    rows = backend.tensor(random_values(tokens, OUT)), backend.tensor(random_values(tokens, WIDTH))
    return ops.add_lora(*rows, backend.tensor(which), a, b)


def select_rows(backend: Backend, *, tokens: int) -> Any:
    wanted = np.arange(tokens - 1, -1, -2, dtype=np.int32)
    return ops.select_rows(backend.tensor(random_values(tokens, WIDTH)), backend.tensor(wanted))


def select_columns(backend: Backend, *, tokens: int) -> Any:
    turned = np.arange(WIDTH - 1, -1, -1, dtype=np.int32)
    return ops.select_columns(backend.tensor(random_values(tokens, WIDTH)), backend.tensor(turned))


def join_columns(backend: Backend, *, tokens: int) -> Any:
    return ops.join_columns(*(backend.tensor(random_values(tokens, width)) for width in (WIDTH, 7, 33)))


def join_slots(backend: Backend, *, tokens: int) -> Any:
    turned = np.arange(3 * WIDTH - 1, -1, -1, dtype=np.int32)
    return ops.join_slots(backend.tensor(random_values(tokens, 3, WIDTH)), backend.tensor(turned))


def cut_slots(backend: Backend, *, tokens: int) -> Any:
    turned = np.arange(WIDTH // 3 * 3 - 1, -1, -1, dtype=np.int32)
    return ops.cut_slots(backend.tensor(random_values(tokens, WIDTH)), backend.tensor(turned), k=3)


def quantize_rows(backend: Backend, *, tokens: int, activation: str) -> Any:
    """Return rounded rows as products see them: a diagonal matrix of equal numbers gives them back, scaled."""
    form = Q8_0 if activation == INT8_32.name else Q6_K
    width = width_of(form)
    blocks = quantize_tensor(form, np.eye(width, dtype=np.float32))
    diagonal = backend.pack(StoredTensor("diagonal", form, (width, width), blocks))
    return ops.linear(ops.quantize_rows(backend.tensor(random_values(tokens, width)), activation=activation), diagonal)


def quantize_blocks(backend: Backend, *, form: type[QuantFormat], weighted: bool = False) -> Any:
    width = width_of(form)
    importance = [backend.tensor(random_values(width) ** 2)] if weighted else []
    return ops.quantize_blocks(backend.tensor(random_values(7, width)), *importance, format=form.name)


def dequantize_blocks(backend: Backend, *, form: type[QuantFormat]) -> Any:
    blocks = quantize_tensor(form, random_values(7, width_of(form)))
    return ops.dequantize_blocks(backend.tensor(blocks.reshape(7, -1)), format=form.name)


def count_nonfinite(backend: Backend) -> Any:
    x = random_values(7, WIDTH)
    x[2, 5] = np.nan
    x[2, 90] = np.inf
    x[6, 0] = -np.inf
    return ops.count_nonfinite(backend.tensor(x))


def gated(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    gate, up = (weight(backend, form, seed=seed) for seed in (1, 2))
    return ops.linear_silu_mul(backend.tensor(random_values(tokens, width_of(form))), gate, up)


def gelu_gated(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    gate, up = (weight(backend, form, seed=seed) for seed in (1, 2))
    return ops.linear_activate_mul(backend.tensor(random_values(tokens, width_of(form))), gate, up, kind="gelu_tanh")


def embedding(backend: Backend, *, form: type[QuantFormat], fills: bool = False) -> Any:
    ids = [0, OUT - 1, OUT if fills else 5]
    how = {"fills": True} if fills else {}
    return ops.embedding(backend.tensor(np.array(ids, np.int32)), weight(backend, form), **how)
