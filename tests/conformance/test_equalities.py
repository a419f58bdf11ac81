"""The equalities at the level of ops, bit for bit on one target: a row alone and in a batch of any size, a whole prompt
and its chunks, one thread and several."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.guarded_cpu import GuardedCpu
from conformance.same_results import assert_same
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.cpu.cpu_backend import FEW_TOKENS
from sporelm.evals.conformance import paged_attention as cases_paged_attention
from sporelm.evals.conformance.all_cases import CASES
from sporelm.evals.conformance.conformance_case import FEW_FORMATS, FORMAT_NAMES, On, width_of
from sporelm.evals.conformance.paged_attention import CHOSEN, COMMON, Heads
from sporelm.evals.conformance.random_weights import ALIKE
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.ops.paged_attention import PAGE

MAX_ROWS = 131  # rows of the whole batch: one past a block of tokens, and some
IMAGES = ((100, 180), (190, 192), (230, 520))  # positions of images in prompts
BATCHES = (1, 2, 3, 7, FEW_TOKENS, FEW_TOKENS + 1, 33, 120, 121)


# Without --all, the longest tests run on the best target and on avx2, the most common one.
DEFAULT_TARGETS = [
    pytest.param(each, marks=[] if each in (TARGETS[0], "avx2") else [pytest.mark.all]) for each in TARGETS
]
on_default_targets = pytest.mark.parametrize("opened_cpu", DEFAULT_TARGETS, indirect=True)


def products(on: On, format_name: str, width: int) -> dict[str, Callable[[Any], Any]]:
    """Every kind of product."""
    weights = tuple(on.weight(format_name, out, width) for out in (65, 33, 7))
    bias = on.tensor(on.values(65))
    return {
        "linear": lambda x: (ops.linear(x, weights[0]),),
        "bias": lambda x: (ops.linear(x, weights[0], bias),),
        "group": lambda x: ops.linear_group(x, weights),
        "gated": lambda x: (ops.linear_silu_mul(x, weights[0], on.weight(format_name, 65, width)),),
    }


KINDS = [
    pytest.param(
        format_name,
        kind,
        marks=[pytest.mark.all] if format_name in ALIKE or (rare and format_name not in FEW_FORMATS) else [],
    )
    for format_name in FORMAT_NAMES
    for kind, rare in (("linear", False), ("bias", True), ("group", True), ("gated", False))
]


@on_default_targets
@pytest.mark.parametrize(("format_name", "kind"), KINDS)
def test_a_row_of_a_product_is_the_same_in_any_batch(cpu: Any, format_name: str, kind: str) -> None:
    """The kernels for one, few and many tokens reduce in one order."""
    on = On(cpu, format_name)
    width = width_of(format_name, 5 if width_of(format_name, 1) == 32 else 2)
    product = products(on, format_name, width)[kind]
    x = on.values(MAX_ROWS, width)
    state = on.random.bit_generator.state

    def run(rows: np.ndarray) -> list[np.ndarray]:
        on.random.bit_generator.state = state  # the same second weight each time
        return [result.numpy() for result in product(cpu.tensor(rows))]

    whole = run(x)
    for batch in BATCHES:
        for start in {0, MAX_ROWS - batch}:
            for found, expected in zip(run(x[start : start + batch]), whole, strict=True):
                assert_same(found, expected[start : start + batch])


def embedded(on: On, format_name: str, x: np.ndarray) -> Any:
    table = On(on.backend, format_name).weight(format_name, 64, width_of(format_name, 2))
    return ops.embedding(on.ints(np.abs(x[:, 0] * 20) % 64), table)


def row_ops(on: On) -> dict[str, Callable[[np.ndarray], Any]]:
    """Ops that treat each row by itself."""
    weight = on.tensor(on.values(90))
    other = on.values(MAX_ROWS, 90)
    return {
        "rms_norm": lambda x: ops.rms_norm(on.tensor(x), weight, eps=1e-5),
        "add_rms_norm": lambda x: ops.add_rms_norm(on.tensor(x), on.tensor(x * 2), weight, eps=1e-5)[0],
        "silu_mul": lambda x: ops.silu_mul(on.tensor(x), on.tensor(np.flip(x, 1))),
        **{f"embedding {format_name}": partial(embedded, on, format_name) for format_name in FORMAT_NAMES},
        "top_k": lambda x: ops.top_k(on.tensor(x), k=7)[0],
        "select_columns": lambda x: ops.select_columns(on.tensor(x), on.ints(np.arange(x.shape[1])[::-1])),
        "select_rows": lambda x: ops.select_rows(on.tensor(other), on.ints(np.abs(x[:, 0] * 20) % MAX_ROWS)),
    }


EMBEDDINGS = [pytest.param(f"embedding {f}", marks=[pytest.mark.all] if f in ALIKE else []) for f in FORMAT_NAMES]
OTHERS = ("rms_norm", "add_rms_norm", "silu_mul", "top_k", "select_columns", "select_rows", *EMBEDDINGS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_of_other_ops_is_the_same_in_any_batch(cpu: Any, name: str) -> None:
    on = On(cpu, name)
    run = row_ops(on)[name]
    x = on.values(MAX_ROWS, 90)
    whole = run(x).numpy()
    for batch in BATCHES:
        assert_same(run(x[5 : 5 + batch]).numpy(), whole[5 : 5 + batch])


class Prompts:
    """Sequences whose pages are full; any of their last rows can be asked for."""

    def __init__(
        self, cpu: Any, heads: Heads, lengths: tuple[int, ...], window: int | None, kind: str = "plain"
    ) -> None:
        """kind "sinks": with sinks, and with scores that are bounded as Gemma 2 does it; "slopes": as MPT; "chunks": of
        `window` positions; "images": with the spans of IMAGES; "texts": with spans of text only."""
        self.on, self.heads = On(cpu, f"{heads} {lengths}"), heads
        self.span = {"chunk" if kind == "chunks" else "window": window}
        self.lengths = lengths
        self.tables = cases_paged_attention.page_tables(self.on, lengths)
        self.cache = cases_paged_attention.filled(self.on, heads)
        self.queries = [self.on.values(length, heads.width) for length in lengths]
        numbers = self.on.tensor(np.abs(self.on.values(heads.group * heads.kv_heads)) * np.float32(0.1))
        self.numbers = {"sinks": [numbers], "slopes": [None, numbers]}.get(kind, [])
        self.softcap = 0.5 if kind == "sinks" else None
        self.images = {"images": IMAGES, "texts": ()}.get(kind)

    def rows(self, *parts: tuple[int, int, int]) -> list[np.ndarray]:
        """Results of (sequence, first, last) positions, computed in one step."""
        starts, held, q = [0], [], []
        for sequence, first, last in parts:
            starts.append(starts[-1] + last - first)
            held.append(last)
            q.append(self.queries[sequence][first:last])
        numbers = (starts, held, self.tables[[sequence for sequence, _, _ in parts]])
        tensors = [self.on.ints(values) for values in numbers]
        scale = self.heads.head_dim**-0.5
        q_tensor = self.on.tensor(np.concatenate(q))
        options = {"scale": scale, "softcap": self.softcap, **self.span}
        given = self.numbers if self.images is None else [None, None, self.on.ints(self.spans(parts))]
        out = ops.attention(q_tensor, self.cache, *tensors, *given, **options).numpy()
        return np.split(out, starts[1:-1])

    def spans(self, parts: tuple[tuple[int, int, int], ...]) -> np.ndarray:
        """Return the span of each row: an image is at the same positions of every sequence."""
        spans = np.zeros((max(self.lengths), 2), np.int32)
        for first, stop in self.images or ():
            spans[first:stop] = first, stop
        return np.concatenate([spans[first:last] for _, first, last in parts])


@on_default_targets
@pytest.mark.parametrize(
    ("window", "kind"), [(None, "plain"), (70, "plain"), (70, "sinks"), (None, "slopes"), (70, "chunks")]
)
@pytest.mark.parametrize("heads", COMMON, ids=str)
def test_attention_of_chunks_is_that_of_the_whole(cpu: Any, heads: Heads, window: int | None, kind: str) -> None:
    """Chunks of one are decoding: the kernel that splits positions equals the one that tiles rows."""
    length = 600
    prompts = Prompts(cpu, heads, (length,), window, kind)
    (whole,) = prompts.rows((0, 0, length))
    for position in (0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 511, 512, 599):
        (alone,) = prompts.rows((0, position, position + 1))
        assert_same(alone, whole[position : position + 1])
    for chunk in (2, 7, 16, 17, 64, 250):
        for start in (0, 3, 250, length - chunk):
            (part,) = prompts.rows((0, start, start + chunk))
            assert_same(part, whole[start : start + chunk])


@pytest.mark.parametrize("heads", [*COMMON, CHOSEN[0]], ids=str)
def test_attention_of_a_sequence_is_the_same_beside_others(cpu: Any, heads: Heads) -> None:
    prompts = Prompts(cpu, heads, (300, 70, 513, 1), None)
    steps = (
        ((0, 299, 300), (1, 69, 70), (2, 512, 513), (3, 0, 1)),
        ((0, 290, 300), (1, 69, 70), (2, 480, 513)),
        ((2, 400, 513), (3, 0, 1)),
    )
    for step in steps:
        for part, together in zip(step, prompts.rows(*step), strict=True):
            (alone,) = prompts.rows(part)
            assert_same(together, alone)


@on_default_targets
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("heads", COMMON, ids=str)
def test_attention_of_images_is_the_same_in_any_chunk(cpu: Any, heads: Heads, window: int | None) -> None:
    """Chunks that have all or the last of an image's rows; text before, between and behind images; decoded rows."""
    prompts = Prompts(cpu, heads, (600, 600), window, "images")
    (whole,) = prompts.rows((0, 0, 600))
    parts = [(0, 100), (93, 190), (100, 180), (150, 180), (180, 184), (190, 530), (230, 531), (400, 522), (520, 600)]
    for first, last in [*parts, (99, 100), (179, 180), (180, 181), (599, 600)]:
        found, _ = prompts.rows((0, first, last), (1, 95, 520))
        assert_same(found, whole[first:last])


@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_text_is_the_same_with_and_without_spans(cpu: Any, window: int | None) -> None:
    plain, texts = (Prompts(cpu, COMMON[1], (300, 70, 513), window, kind) for kind in ("plain", "texts"))
    for step in (((0, 299, 300), (1, 69, 70), (2, 512, 513)), ((0, 200, 300), (1, 69, 70), (2, 480, 513))):
        for found, expected in zip(texts.rows(*step), plain.rows(*step), strict=True):
            assert_same(found, expected)


def test_keys_and_values_are_stored_the_same_alone_and_together(cpu: Any) -> None:
    heads = COMMON[1]
    stores = []
    for chunk in (33, 1):
        on = On(cpu, "stored")
        cache = on.backend.allocate_pages(2, [(heads.kv_heads, heads.head_dim)], KV_TYPES[heads.kv])[0]
        keys, values = (on.values(33, heads.kv_heads * heads.head_dim) for _ in range(2))
        slots = on.random.permutation(2 * PAGE)[:33]
        for start in range(0, 33, chunk):
            part = slice(start, start + chunk)
            ops.store_kv(on.tensor(keys[part]), on.tensor(values[part]), cache, on.ints(slots[part]))
        stores.append(cpu.export_pages(cache, range(2)).astype(np.float32))
    assert_same(stores[0], stores[1])


COMMON_OPS = [case for case in CASES if case.common and not case.rare]


@pytest.mark.parametrize("thread_pools", DEFAULT_TARGETS, indirect=True)
@pytest.mark.parametrize("op", sorted(ops.ALL))
def test_results_do_not_depend_on_the_number_of_threads(thread_pools: list[GuardedCpu], op: str) -> None:
    """One, two and three threads, on some cases of an op, all of its formats among them; fewer on lesser targets."""
    step = 5 if thread_pools[0].target.name == TARGETS[0] else 11
    for case in [case for case in COMMON_OPS if case.op == op][::step]:
        expected, *others = (case.run(backend) for backend in thread_pools)
        for found in others:
            for left, right in zip(found, expected, strict=True):
                assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), str(case)
    for backend in thread_pools:
        backend.heap.check()
