"""Eager equals planned, bit for bit: a small decoder in every bucket, run from memory full of NaN."""

from typing import Any

import numpy as np
import pytest

from conformance.tiny_decoder import OUTPUTS, SEQUENCES, STEPS, TABLE, Steps, TinyDecoder, extents_of, specs
from sporelm import ops
from sporelm.evals.conformance.conformance_case import FEW_FORMATS, FORMAT_NAMES, On
from sporelm.evals.conformance.rows import rope_table
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32


def poison(plan: Plan) -> None:
    """Fill every arena with NaN: a step may read nothing that it did not write."""
    for bucket in plan.bucket_programs.values():
        memory: Any = bucket.program
        memory._arena.array[:] = 0xFF


# The second pair has activations of both kinds for one x: values in blocks of 32 beside queries and keys of 256.
MIXES = ("Q4_K Q6_K", "Q5_K Q8_0", "Q4_0 Q6_K", "Q8_0 F16")
EVERY_DECODER = [
    *(
        pytest.param(format_name, marks=[] if format_name in FEW_FORMATS else [pytest.mark.all])
        for format_name in FORMAT_NAMES
    ),
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
