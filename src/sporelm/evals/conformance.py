"""Runs each back-end's ops on small random values and compares the results with the ops' numpy meaning.

What `spore doctor --conformance` shows: a short check on a user's machine. The tests go further.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.backend import Backend, Missing
from sporelm.backends.registry import all_backends, open_backend
from sporelm.ops.attention import PAGE
from sporelm.quant import FORMATS, QuantFormat, quantize_tensor
from sporelm.tensor.dtype import F16, F32, DType
from sporelm.tensor.tensor import Tensor
from sporelm.weights.stored import StoredTensor

TOLERANCE = 1e-5  # of the greatest absolute value of the result
WIDTH = 96  # whole blocks of 32, and no multiple of any vector tile
OUT = 33
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 26

Run = Callable[[Backend], Any]


@dataclass(frozen=True)
class Case:
    """One op on one set of values; `run` gives its result tensors on a back-end."""

    name: str
    run: Run


def check_all() -> list[dict[str, str]]:
    """Each case on each back-end that can run here: back-end, case, state (equal, differs, fails), error."""
    reference = open_backend("reference")
    rows = []
    for name, backend in all_backends().items():
        if name == "reference" or isinstance(backend, Missing):
            continue
        rows += [check(name, case, backend, reference) for case in cases()]
        backend.close()
    return rows


def check(name: str, case: Case, backend: Backend, reference: Backend) -> dict[str, str]:
    """One case on one back-end."""
    row = {"backend": name, "case": case.name}
    expected = arrays(case.run(reference))
    try:
        found = arrays(case.run(backend))
    except Exception as error:  # whatever a back-end of somebody else raises is what this row should say
        return row | {"state": "fails", "error": f"{type(error).__name__}: {error}"}
    error_share = max(difference(*pair) for pair in zip(found, expected, strict=True))
    return row | {"state": "equal" if error_share <= TOLERANCE else "differs", "error": f"{error_share:.1e}"}


def arrays(results: Any) -> list[np.ndarray]:
    """The results of an op as arrays."""
    return [tensor.numpy() for tensor in (results if isinstance(results, tuple) else (results,))]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Greatest difference, as a share of the greatest expected value; infinite for another shape or NaN."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0)) / scale


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random values, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def weight(backend: Backend, form: type[QuantFormat], out: int = OUT, seed: int = 1) -> Tensor:
    """A random matrix [out, WIDTH] of a number format, packed."""
    blocks = quantize_tensor(form, values(out, WIDTH, seed=seed))
    return backend.pack(StoredTensor("weight", form, (out, WIDTH), blocks))


def cases() -> Iterator[Case]:
    """Every op, with odd sizes; products and look-ups in every number format."""
    for tokens in (1, 7, 33):
        yield Case(f"rms_norm {tokens}", partial(norm, tokens=tokens))
        yield Case(f"add_rms_norm {tokens}", partial(add_norm, tokens=tokens))
        yield Case(f"add {tokens}", partial(elementwise, op=ops.add, tokens=tokens))
        yield Case(f"silu_mul {tokens}", partial(elementwise, op=ops.silu_mul, tokens=tokens))
        for form in FORMATS.values():
            yield Case(f"linear {form.name} {tokens}", partial(linear, form=form, tokens=tokens))
            yield Case(f"linear_silu_mul {form.name} {tokens}", partial(gated, form=form, tokens=tokens))
    for form in FORMATS.values():
        yield Case(f"embedding {form.name}", partial(embedding, form=form))
    for style in ("half", "adjacent"):
        yield Case(f"rope {style}", partial(rope, style=style))
    for dtype in (F32, F16):
        for window in (None, 9):
            yield Case(f"attention {dtype.name} window {window}", partial(attention, dtype=dtype, window=window))
    yield Case("argmax", lambda backend: ops.argmax(backend.tensor(values(5, 1001))))
    yield Case("top_k", lambda backend: ops.top_k(backend.tensor(values(5, 1001)), k=40))


def norm(backend: Backend, *, tokens: int) -> Any:
    return ops.rms_norm(backend.tensor(values(tokens, WIDTH)), backend.tensor(values(WIDTH)), eps=1e-5)


def add_norm(backend: Backend, *, tokens: int) -> Any:
    rows = [backend.tensor(values(tokens, WIDTH, seed=seed)) for seed in (0, 1)]
    return ops.add_rms_norm(*rows, backend.tensor(values(WIDTH)), eps=1e-5)


def elementwise(backend: Backend, *, op: ops.Op, tokens: int) -> Any:
    return op(*(backend.tensor(values(tokens, WIDTH, seed=seed)) for seed in (0, 1)))


def linear(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    return ops.linear(backend.tensor(values(tokens, WIDTH)), weight(backend, form))


def gated(backend: Backend, *, form: type[QuantFormat], tokens: int) -> Any:
    gate, up = (weight(backend, form, seed=seed) for seed in (1, 2))
    return ops.linear_silu_mul(backend.tensor(values(tokens, WIDTH)), gate, up)


def embedding(backend: Backend, *, form: type[QuantFormat]) -> Any:
    return ops.embedding(backend.tensor(np.array([0, OUT - 1, 5], np.int32)), weight(backend, form))


def rope(backend: Backend, *, style: str) -> Any:
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    positions = np.array([0, 1, 63], np.int32)
    x = backend.tensor(values(3, HEADS * HEAD_DIM))
    return ops.rope(x, backend.tensor(positions), backend.tensor(table), head_dim=HEAD_DIM, style=style)


def attention(backend: Backend, *, dtype: DType, window: int | None) -> Any:
    """Two sequences over three pages: four rows at the end of 70 positions, one row at the end of 5."""
    cache = backend.page_pool(3, [(KV_HEADS, HEAD_DIM)], dtype)[0]
    canonical = values(3, 2, KV_HEADS, PAGE, HEAD_DIM).astype(dtype.numpy)
    backend.import_pages(cache, [0, 1, 2], canonical)
    tables = [np.array([0, 4, 5], np.int32), np.array([70, 5], np.int32), np.array([[2, 0], [1, 1]], np.int32)]
    q = backend.tensor(values(5, HEADS * HEAD_DIM))
    return ops.attention(q, cache, *map(backend.tensor, tables), scale=HEAD_DIM**-0.5, window=window)
