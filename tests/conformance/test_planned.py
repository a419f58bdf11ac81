"""Eager equals planned, bit for bit: a small decoder in every regime, run from memory full of NaN."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from conformance.case import FEW_FORMATS, FORMAT_NAMES, On
from conformance.cases_rows import rope_table
from sporelm import ops
from sporelm.ops import Spec, Symbol, trace
from sporelm.ops.attention import PAGE
from sporelm.plan import Plan
from sporelm.quant import FORMATS
from sporelm.tensor.dtype import F16, F32, I32

KV_HEADS, HEAD_DIM, VOCAB = 2, 16, 65
SEQUENCES, TABLE = 3, 4
OUTPUTS = ("logits", "best", "values", "ids")


class TinyDecoder:
    """One layer: every op at least once, written as models are, before any rule merges calls.

    `mix` names a number format, or two as files mix them: "Q4_K Q6_K" has values and embedding in the second.
    """

    def __init__(self, on: On, mix: str) -> None:
        form, other = mix.split()[0], mix.split()[-1]
        blocks = 256 in (FORMATS[form].values, FORMATS[other].values)
        self.width, hidden, heads = (256, 512, 16) if blocks else (96, 160, 6)
        assert self.width == heads * HEAD_DIM
        self.embedding = on.weight(other, VOCAB, self.width)
        self.norms = [on.tensor(on.values(self.width)) for _ in range(3)]
        outs = {"q": self.width, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": self.width}
        self.attention = {
            name: on.weight(other if name == "v" else form, out, self.width) for name, out in outs.items()
        }
        self.bias = on.tensor(on.values(self.width))
        self.gate, self.up = (on.weight(form, hidden, self.width) for _ in range(2))
        self.down = on.weight(form, self.width, hidden)
        self.table = on.tensor(rope_table(TABLE * PAGE, HEAD_DIM))
        self.cache = on.backend.page_pool(SEQUENCES * TABLE, [(KV_HEADS, HEAD_DIM)], F32 if form == "F32" else F16)[0]

    def forward(self, ids: Any, positions: Any, slots: Any, starts: Any, lengths: Any, pages: Any, rows: Any) -> Any:
        x = ops.embedding(ids, self.embedding)
        h = ops.rms_norm(x, self.norms[0], eps=1e-5)
        q = ops.linear(h, self.attention["q"], self.bias)
        k, v = (ops.linear(h, self.attention[name]) for name in "kv")
        q, k = (ops.rope(part, positions, self.table, head_dim=HEAD_DIM, style="half") for part in (q, k))
        ops.store_kv(k, v, self.cache, slots)
        attended = ops.attention(q, self.cache, starts, lengths, pages, scale=HEAD_DIM**-0.5)
        x = ops.add(x, ops.linear(attended, self.attention["o"]))
        h = ops.rms_norm(x, self.norms[1], eps=1e-5)
        x = ops.add(x, ops.linear(ops.silu_mul(ops.linear(h, self.gate), ops.linear(h, self.up)), self.down))
        logits = ops.linear(ops.rms_norm(ops.select_rows(x, rows), self.norms[2], eps=1e-5), self.embedding)
        values, ids = ops.top_k(logits, k=5)
        return dict(zip(OUTPUTS, (logits, ops.argmax(logits), values, ids), strict=True))


def specs() -> dict[str, Spec]:
    tokens, sequences, rows = Symbol("tokens", 512), Symbol("sequences", SEQUENCES), Symbol("rows", 512)
    shapes: dict[str, tuple[Any, ...]] = dict.fromkeys(("ids", "positions", "slots"), (tokens,))
    shapes |= {"starts": (Symbol("starts", SEQUENCES + 1),), "lengths": (sequences,), "pages": (sequences, TABLE)}
    return {name: Spec(shape, I32) for name, shape in (shapes | {"rows": (rows,)}).items()}


class Steps:
    """What is fed: the next ids of some sequences, and where they go."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.lengths = [0] * SEQUENCES
        self.pages = self.random.permutation(SEQUENCES * TABLE).reshape(SEQUENCES, TABLE)

    def step(self, counts: Mapping[int, int], rows: int) -> dict[str, np.ndarray]:
        """Arrays of a step with `counts[sequence]` new tokens each, of which the last `rows` are scored."""
        positions, slots, starts, lengths = [], [], [0], []
        for sequence, count in counts.items():
            for position in range(self.lengths[sequence], self.lengths[sequence] + count):
                positions.append(position)
                slots.append(self.pages[sequence, position // PAGE] * PAGE + position % PAGE)
            self.lengths[sequence] += count
            starts.append(len(positions))
            lengths.append(self.lengths[sequence])
        tokens = len(positions)
        ids, wanted = self.random.integers(0, VOCAB, tokens), range(tokens - rows, tokens)
        lists = (ids, positions, slots, starts, lengths, self.pages[list(counts)], wanted)
        return {name: np.array(values, np.int32) for name, values in zip(specs(), lists, strict=True)}


def extents_of(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    names = {"tokens": "ids", "sequences": "lengths", "starts": "starts", "rows": "rows"}
    return {symbol: len(arrays[name]) for symbol, name in names.items()}


def poison(plan: Plan) -> None:
    """Fill every arena with NaN: a step may read nothing that it did not write."""
    for regime in plan.built.values():
        memory: Any = regime.program
        memory._arena.array[:] = 0xFF


# (new tokens of each sequence, rows scored): all regimes, and every regime of rows inside that of many tokens
STEPS = (
    ({0: 33, 1: 5}, 1),
    ({0: 1, 1: 1}, 2),
    ({0: 1}, 1),
    ({2: 130}, 130),
    ({0: 20, 1: 1}, 16),
    ({1: 7}, 7),
    ({0: 17, 2: 1}, 17),
    ({0: 1, 1: 1, 2: 1}, 3),
    ({1: 16}, 1),
)


# The second pair has activations of both kinds for one x: values in blocks of 32 beside queries and keys of 256.
MIXES = ("Q4_K Q6_K", "Q5_K Q8_0", "Q4_0 Q6_K", "Q8_0 F16")
EVERY_DECODER = [
    *(pytest.param(form, marks=[] if form in FEW_FORMATS else [pytest.mark.all]) for form in FORMAT_NAMES),
    *(pytest.param(mix, marks=[] if mix in MIXES[:2] else [pytest.mark.all]) for mix in MIXES),
]


@pytest.mark.parametrize("mix", EVERY_DECODER)
def test_a_decoder_is_the_same_eager_and_planned(cpu: Any, mix: str) -> None:
    eager, planned = (TinyDecoder(On(cpu, mix), mix) for _ in range(2))
    plan = Plan(trace(planned.forward, specs()), cpu)
    plan.prepare()
    steps = Steps()
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        poison(plan)
        found = {name: array.copy() for name, array in plan.run(arrays, extents_of(arrays)).items()}
        expected = eager.forward(**{name: cpu.tensor(array) for name, array in arrays.items()})
        for name in OUTPUTS:
            assert np.array_equal(found[name], expected[name].numpy()), f"{name} of step {counts}"
            assert np.isfinite(found[name]).all()
    caches = [cpu.export_pages(decoder.cache, range(SEQUENCES * TABLE)) for decoder in (eager, planned)]
    assert np.array_equal(*caches)


@pytest.mark.parametrize("mix", ["F32", "Q8_0", *MIXES[:2]])
def test_a_planned_decoder_agrees_with_the_reference(cpu: Any, reference: Any, mix: str) -> None:
    """Each step's logits; the pages are carried over so that differences do not add up."""
    mine, theirs = (TinyDecoder(On(backend, mix), mix) for backend in (cpu, reference))
    plan = Plan(trace(mine.forward, specs()), cpu)
    steps = Steps()
    every = range(SEQUENCES * TABLE)
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        found = plan.run(arrays, extents_of(arrays))["logits"]
        expected = theirs.forward(**{name: reference.tensor(array) for name, array in arrays.items()})["logits"].numpy()
        # Where int8 activations or halves in the cache are rounded, one of them may fall the other way.
        assert np.abs(found - expected).max() <= (1e-4 if mix == "F32" else 2e-2) * np.abs(expected).max()
        reference.import_pages(theirs.cache, every, cpu.export_pages(mine.cache, every))


@pytest.mark.parametrize("width", [7, 33, 52, 96])
def test_padding_of_rows_never_matters_in_a_plan(cpu: Any, width: int) -> None:
    """Inputs, rope and element-by-element ops before a norm, whose kernel sums whole vectors."""
    on = On(cpu, f"padding {width}")
    weight = on.tensor(on.values(width))
    table = on.tensor(rope_table(8, 2))

    def function(x: Any, y: Any, positions: Any) -> dict[str, Any]:
        normed = ops.rms_norm(x, weight, eps=1e-5)
        turned = ops.rope(ops.add(normed, y), positions, table, head_dim=width, style="half")
        return {"result": ops.rms_norm(ops.silu_mul(turned, y), weight, eps=1e-5)}

    tokens = Symbol("tokens", 40)
    rows = Spec((tokens, width), F32)
    plan = Plan(trace(function, {"x": rows, "y": rows, "positions": Spec((tokens,), I32)}), cpu)
    for count in (33, 1, 7, 33):
        arrays = {"x": on.values(count, width), "y": on.values(count, width)}
        arrays["positions"] = np.arange(count, dtype=np.int32) % 8
        plan.prepare()
        poison(plan)
        found = plan.run(arrays, {"tokens": count})["result"].copy()
        assert np.isfinite(found).all()
        tensors = {name: cpu.tensor(array) for name, array in arrays.items()}
        assert np.array_equal(found, function(**tensors)["result"].numpy())
