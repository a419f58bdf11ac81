"""Programs: descriptors, cells, guards that pick a kernel by the number of rows, chains without a barrier, refusals."""

from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.cpu import CpuBackend
from sporelm.backends.cpu.cpu_program import CellTable, assemble, attention_cells
from sporelm.backends.cpu.formats import FORMATS as PANELS
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels import many_token_linear
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, TILE_TOKENS
from sporelm.backends.cpu.lowering.emitter import Cell, KernelEntry
from sporelm.backends.cpu.lowering.op_lowering import rowwise_ops
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.step_loops import CHAIN
from sporelm.backends.cpu.runtime.thread_pool import SCRATCH_BYTES, ThreadPool
from sporelm.errors import BackendError, OpError
from sporelm.evals.conformance.random_weights import blocks_of
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16, F32, I32, U8

random = np.random.default_rng(3)
WIDTH, OUT = 96, 50


def width_of(form: str) -> int:
    return WIDTH if WIDTH % FORMATS[form].values == 0 else 512


def packed(cpu: CpuBackend, form: str = "F32", out: int = OUT) -> Any:
    matrix = random.standard_normal((out, width_of(form)), np.float32)
    return cpu.pack(StoredTensor("w", FORMATS[form], matrix.shape, blocks_of(FORMATS[form], matrix)))


def program_of(plan: Plan, bucket: str) -> Any:
    return plan.bucket_program(bucket).program


def chains(program: Any) -> list[int]:
    return program._table.entries[:, CHAIN // 8].tolist()


def kernels_of(program: Any) -> list[str]:
    return [entry.kernel.name for entry in program.entries]


def test_descriptors_hold_what_entries_say(compiler: Compiler) -> None:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        k.store(f.whole, f.out)
        k.store(f.real, f.out, 8)
        k.store(f.cell, f.out, 16)
        k.store(f.fixed, f.out, 24)
        k.store(last, f.out, 32)

    kernel = Kernel("test_descriptor", parse_fields("whole:i real:f out:p cell:c fixed:c"), body)
    out = np.zeros(5, np.int64)
    given = {"whole": -5, "real": 0.1, "out": out.ctypes.data, "cell": Cell("tokens"), "fixed": Cell("9", 9)}
    cells, own = CellTable(), list[Region]()
    thread_pool = ThreadPool(compiler, 1)
    table = assemble([KernelEntry(kernel, given, Cell("tokens"), factor=3, grain=1000)], compiler, cells, own, 1)
    for tokens in (7, 4):
        assert cells.set_extents({"tokens": tokens}) == []
        thread_pool.run(table)
        assert (out[0], out[1:2].view(np.float32)[0], *out[2:]) == (-5, np.float32(0.1), tokens, 9, 3 * tokens)
    thread_pool.close()


def test_cells_of_blocks_round_up() -> None:
    cells = CellTable()
    cells.address(Cell("rows blocks"))
    cells.address(Cell("130 blocks", 130))
    for rows, blocks in ((1, 1), (many_token_linear.TOKENS_PER_BLOCK, 1), (many_token_linear.TOKENS_PER_BLOCK + 1, 2)):
        cells.set_extents({"rows": rows})
        assert cells.words[:2].tolist() == [blocks, -(-130 // many_token_linear.TOKENS_PER_BLOCK)]


def test_too_many_cells_are_refused() -> None:
    cells = CellTable()
    for number in range(512):
        cells.address(Cell(str(number), number))
    assert cells.words.tolist() == list(range(512))
    with pytest.raises(BackendError, match="more than 512 extents"):
        cells.address(Cell("one more", 1))


def test_a_kernel_that_wants_too_much_scratch_is_refused(compiler: Compiler) -> None:
    kernel = Kernel(
        "test_greedy", parse_fields("x:i"), lambda k, f, first, last, scratch: None, scratch=SCRATCH_BYTES + 1
    )
    with pytest.raises(BackendError, match=f"test_greedy needs {SCRATCH_BYTES + 1} bytes"):
        assemble([KernelEntry(kernel, {"x": 0}, Cell("1", 1))], compiler, CellTable(), [], 1)


@pytest.mark.parametrize("form", ["F32", "Q4_1"])
def test_each_step_bucket_has_its_kernel(cpu: CpuBackend, form: str) -> None:
    weight = packed(cpu, form)
    spec = Spec((Symbol("tokens", 512), WIDTH), F32)
    plan = Plan(trace(lambda x: {"y": ops.linear(x, weight)}, {"x": spec}), cpu)
    for bucket in ("one", "few", "many"):
        found = [name for name in kernels_of(program_of(plan, bucket)) if name.startswith("linear")]
        expected = ["few", "many"] if bucket == "many" else [bucket]
        assert found == [f"linear_{name}_{form.lower()}_1" for name in expected]


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
@pytest.mark.parametrize("bucket", ["one", "few", "many"])
def test_exactly_one_kernel_serves_each_number_of_rows(cpu: CpuBackend, form: str, bucket: str) -> None:
    weight = packed(cpu, form)
    specs = {"x": Spec((Symbol("rows", 512), WIDTH), F32)}
    plan = Plan(trace(lambda x: {"y": ops.linear(x, weight)}, specs), cpu)
    entries = [entry for entry in program_of(plan, bucket).entries if entry.kernel.name.startswith("linear")]
    for rows in range(1, cpu.step_buckets[bucket] + 1):
        serving = [entry.kernel.name for entry in entries if entry.guard and entry.guard[1] <= rows <= entry.guard[2]]
        few = cpu.target.tiles.few_tokens_of(PANELS[form])
        expected = "one" if rows == 1 else "few" if rows <= few else "many"
        assert serving == [f"linear_{expected}_{form.lower()}_1"]


def test_guards_pick_the_kernel_at_each_step(cpu: CpuBackend) -> None:
    """All three in one program: results of any number of rows are those of the op run alone."""
    weight = packed(cpu)
    specs = {"x": Spec((Symbol("rows", 512), WIDTH), F32)}
    plan = Plan(trace(lambda x: {"y": ops.linear(x, weight)}, specs), cpu)
    program = program_of(plan, "many")
    for rows in (1, 2, 16, 17, 120, 121, 130, 1, 512, 2):
        x = random.standard_normal((rows, WIDTH), np.float32)
        found = program.run({"x": x}, {"rows": rows})["y"]
        assert np.array_equal(found, ops.linear(cpu.tensor(x), weight).numpy())


def test_row_by_row_kernels_are_chained(cpu: CpuBackend) -> None:
    """add, norm and rounding of a token follow each other on one thread; the product waits for all of them."""
    norm, weight = cpu.tensor(random.standard_normal(WIDTH, np.float32)), packed(cpu, "Q8_0")

    def function(x: Any, y: Any) -> dict[str, Any]:
        return {"z": ops.linear(ops.rms_norm(ops.silu_mul(x, y), norm, eps=1e-5), weight)}

    rows = Spec((Symbol("tokens", 512), WIDTH), F32)
    plan = Plan(trace(function, {"x": rows, "y": rows}), cpu)
    for bucket, tokens in (("one", 1), ("few", 7), ("many", 33)):
        program = program_of(plan, bucket)
        assert kernels_of(program)[:3] == ["silu_mul", "rms_norm", "quantize_rows_32"]
        assert chains(program)[:4] == [2, 1, 0, 0]
        x, y = (random.standard_normal((tokens, WIDTH), np.float32) for _ in range(2))
        found = program.run({"x": x, "y": y}, {"tokens": tokens})["z"]
        assert np.array_equal(found, function(cpu.tensor(x), cpu.tensor(y))["z"].numpy())


def test_rows_rounded_in_two_ways_are_chained_too(cpu: CpuBackend) -> None:
    """Queries of super-blocks beside values of blocks of 32: one x, rounded once for each."""
    norm = cpu.tensor(random.standard_normal(512, np.float32))
    query, value = packed(cpu, "Q4_K"), packed(cpu, "Q6_K")
    matrix = random.standard_normal((OUT, 512), np.float32)
    other = cpu.pack(StoredTensor("w", FORMATS["Q8_0"], matrix.shape, quantize_tensor(FORMATS["Q8_0"], matrix)))

    def function(x: Any) -> dict[str, Any]:
        y = ops.rms_norm(x, norm, eps=1e-5)
        return {"q": ops.linear(y, query), "v": ops.linear(y, value), "w": ops.linear(y, other)}

    plan = Plan(trace(function, {"x": Spec((Symbol("tokens", 512), 512), F32)}), cpu)
    for bucket, tokens in (("one", 1), ("few", 7), ("many", 33)):
        program = program_of(plan, bucket)
        names = kernels_of(program)
        assert sorted(names[1:3]) == ["quantize_rows_256", "quantize_rows_32"]
        assert len(names) == (9 if bucket == "many" else 6)  # which has two kernels for each product
        assert chains(program)[:3] == [2, 1, 0]
        x = random.standard_normal((tokens, 512), np.float32)
        found = program.run({"x": x}, {"tokens": tokens})
        for name, expected in function(cpu.tensor(x)).items():
            assert np.array_equal(found[name], expected.numpy())


def test_plans_list_the_kernels_that_are_chained(cpu: CpuBackend) -> None:
    """Entries without a barrier after them are of ops in `rowwise_ops`, whose arguments live on to the end."""
    norm, table = cpu.tensor(np.ones(WIDTH, np.float32)), cpu.tensor(np.ones((8, WIDTH), np.float32))
    weight = packed(cpu, "Q8_0", WIDTH)

    def function(ids: Any) -> dict[str, Any]:
        x = ops.embedding(ids, weight)
        y = ops.rms_norm(ops.silu_mul(x, x), norm, eps=1e-5)
        y = ops.rope(ops.rope(y, ids, table, head_dim=WIDTH, style="half"), ids, table, head_dim=WIDTH, style="half")
        total = ops.add(ops.linear(y, weight), x)
        return {"y": ops.linear(ops.rms_norm(total, norm, eps=1e-5), weight)}

    plan = Plan(trace(function, {"ids": Spec((Symbol("tokens", 64),), I32)}), cpu)
    alike = {"activate", "activate_mul", "add_layer_norm", "clamped_swiglu", "combine_experts", "layer_norm", "scale"}
    alike |= {
        "add",
        "clip",
        "softcap",
        "scale_by",
        "xielu",
        "gated_rms_norm",
        *("spread_streams", "merge_streams", "stream", "altup_predict", "altup_first", "altup_correct"),
        "gaussian_topk",
        "count_nonfinite",
        *("blend", "group_norm", "mix_rows", "join_columns", "join_slots", "cut_slots"),
        *("quantize_blocks", "dequantize_blocks"),
    }  # lowered as others are that the plan has
    assert {call.op.name for call in plan.graph.calls} >= rowwise_ops() - alike
    for bucket in cpu.step_buckets:
        program = program_of(plan, bucket)
        chained = [program.entries[at] for at, chain in enumerate(chains(program)) if chain]
        assert chained
        assert all(entry.rowwise for entry in chained)
        names = [entry.kernel.name for entry in program.entries if entry.rowwise]
        assert all(any(name.startswith(known) for known in rowwise_ops()) for name in names)
    plan.close()


def test_conversions_follow_each_other_without_a_barrier(cpu: CpuBackend) -> None:
    """They take the same rows at a time, whatever the sizes of their blocks."""

    def function(source: Any) -> dict[str, Any]:
        values = ops.dequantize_blocks(source, format="Q8_0")
        return {"broken": ops.count_nonfinite(values), "out": ops.quantize_blocks(values, format="Q4_K")}

    plan = Plan(trace(function, {"source": Spec((Symbol("lines", 64), 34 * 16), U8)}), cpu)
    program = program_of(plan, next(iter(cpu.step_buckets)))
    assert [bool(chain) for chain in chains(program)] == [True, True, False]
    plan.close()


def test_kernels_over_other_rows_are_not_chained(cpu: CpuBackend) -> None:
    def function(x: Any, y: Any) -> dict[str, Any]:
        return {"a": ops.add(x, x), "b": ops.add(y, y)}

    specs = {name: Spec((Symbol(extent, 64), WIDTH), F32) for name, extent in (("x", "tokens"), ("y", "rows"))}
    assert chains(program_of(Plan(trace(function, specs), cpu), "few")) == [0, 0]


def test_outputs_have_the_rows_of_the_step(cpu: CpuBackend) -> None:
    plan = Plan(trace(lambda x: {"y": ops.add(x, x)}, {"x": Spec((Symbol("tokens", 64), 5), F32)}), cpu)
    for tokens in (1, 17, 3):
        x = random.standard_normal((tokens, 5), np.float32)
        assert np.array_equal(plan.run({"x": x}, {"tokens": tokens})["y"], 2 * x)


def test_what_attention_needs_of_the_lengths() -> None:
    def cells(starts: list[int], lengths: list[int]) -> dict[str, int]:
        return attention_cells(np.array(starts, np.int32), np.array(lengths, np.int32))

    assert cells([0, 1, 2], [5, SPLIT]) == dict(decoding=2, tiles=0, splits=1, merging=0, **{"sequences splits": 2})
    assert cells([0, 1, 2], [5, SPLIT + 1]) == dict(decoding=2, tiles=0, splits=2, merging=2, **{"sequences splits": 4})
    mixed = cells([0, 1, TILE_TOKENS + 2], [5, 100])
    assert (mixed["decoding"], mixed["tiles"], mixed["splits"], mixed["merging"]) == (1, 2, 1, 0)
    assert cells([0, 0, 2], [5, 70])["decoding"] == 0, "as many rows as sequences, but not one each"


def test_attention_asks_whichever_inputs_it_was_given(cpu: CpuBackend) -> None:
    """Two attentions with lengths of their own, by any name, one of them a constant; alone they give the same."""
    tokens, sequences = Symbol("t", 8), Symbol("s", 4)
    inputs = {"q": Spec((tokens, 32), F32), "a": Spec((Symbol("bounds", 5),), I32)}
    inputs |= {"b": Spec((sequences,), I32), "p": Spec((sequences, 40), I32)}
    (cache,) = cpu.allocate_pages(40, [(1, 32)], F16)
    pages = [0]
    cpu.import_pages(cache, range(40), random.standard_normal((40, 2, 1, 64, 32), np.float32).astype(np.float16))
    long = (cpu.tensor(np.array([0, 1], np.int32)), cpu.tensor(np.array([40 * 64], np.int32)))
    table = cpu.tensor(np.arange(40, dtype=np.int32)[None])

    def both(q: Any, a: Any, b: Any, p: Any) -> dict[str, Any]:
        y = ops.attention(q, cache, a, b, p, scale=0.2)
        return {"y": y, "z": ops.attention(ops.select_rows(q, last), cache, *long, table, scale=0.2)}

    last = cpu.tensor(np.array([1], np.int32))
    q = random.standard_normal((2, 32), np.float32)
    arrays = {"q": q, "a": np.array([0, 2], np.int32), "b": np.array([2], np.int32)}
    arrays |= {"p": np.array([pages + [0] * 39], np.int32)}
    found = Plan(trace(both, inputs), cpu).run(arrays, {"t": 2, "s": 1, "bounds": 2})
    given = [cpu.tensor(array) for array in arrays.values()]
    y = ops.attention(given[0], cache, *given[1:], scale=0.2)
    z = ops.attention(cpu.tensor(q[1:]), cache, *long, table, scale=0.2)
    assert np.array_equal(found["y"], y.numpy())
    assert np.array_equal(found["z"], z.numpy())
    cpu.free_pages([cache])


def test_attention_of_no_sequence_does_nothing(cpu: CpuBackend) -> None:
    (cache,) = cpu.allocate_pages(1, [(1, 32)], F16)
    none, table = cpu.tensor(np.zeros(0, np.int32)), cpu.tensor(np.zeros((0, 1), np.int32))
    starts = cpu.tensor(np.zeros(1, np.int32))
    q = cpu.tensor(np.zeros((0, 32), np.float32))
    assert ops.attention(q, cache, starts, none, table, scale=1.0).shape == (0, 32)
    cpu.free_pages([cache])


def test_a_weight_that_was_not_packed_is_named(cpu: CpuBackend) -> None:
    plain = cpu.tensor(np.ones((4, 4), np.float32))
    with pytest.raises(OpError, match=r"not of a number format.*pack\(\)"):
        ops.linear(plain, plain)


def test_a_cache_is_exported_not_read(cpu: CpuBackend) -> None:
    with pytest.raises(BackendError, match="export"):
        cpu.allocate_pages(2, [(1, 16)], F32)[0].numpy()


def test_packed_bytes_are_what_pack_takes(cpu: CpuBackend) -> None:
    for form in (*PANELS, "Q8_1"):  # without panels of its own
        weight = packed(cpu, form, 33)
        assert cpu.packed_bytes(FORMATS[form], (33, width_of(form))) == weight.storage.array.size
    assert cpu.packed_bytes(FORMATS["F32"], (7,)) == 28


def test_a_mapping_given_again_may_hold_other_arrays(cpu: CpuBackend) -> None:
    """Neither the contents nor the identity of the arrays is kept from step to step."""
    weight, extents = packed(cpu), {"rows": 3}
    plan = Plan(trace(lambda x: {"y": ops.linear(x, weight)}, {"x": Spec((Symbol("rows", 16), WIDTH), F32)}), cpu)
    arrays = {"x": random.standard_normal((3, WIDTH), np.float32)}
    for _ in range(2):
        for change in ("kept", "written to", "replaced"):
            if change == "written to":
                arrays["x"][...] = random.standard_normal((3, WIDTH), np.float32)
            elif change == "replaced":
                arrays["x"] = random.standard_normal((3, WIDTH), np.float32)
            found = plan.run(arrays, extents)["y"]
            assert np.array_equal(found, ops.linear(cpu.tensor(arrays["x"]), weight).numpy())
