"""Torch as a back-end: every op against its numpy meaning; whole graphs eager, planned and padded."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close
from conformance.padded_decoder import BUCKETS, DUMP_PAGE, PAGES_EACH, on_device, padded_decoder
from conformance.padded_steps import empty_step, pad_step, padded_specs
from conformance.tiny_decoder import OUTPUTS, SEQUENCES, STEPS, VOCAB, Steps, TinyDecoder, extents_of, specs
from sporelm import ops
from sporelm.backends.protocol import HOST_TRAITS
from sporelm.errors import BackendError
from sporelm.evals.conformance.all_cases import CASES, sample_cases
from sporelm.evals.conformance.check import check_case, is_within_types
from sporelm.evals.conformance.conformance_case import Case, On
from sporelm.ops import trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor


@pytest.fixture(scope="module")
def torch_backend() -> Iterator[Any]:
    backend = open_available("torch", threads=2)
    yield backend
    backend.close()


def mark_cases() -> list[Any]:
    """Return every case; without --all only the sample that `spore doctor --conformance` runs."""
    short = {id(case) for case in sample_cases()}
    return [pytest.param(case, id=str(case), marks=[] if id(case) in short else [pytest.mark.all]) for case in CASES]


@pytest.mark.parametrize("case", mark_cases())
def test_agrees_with_the_meaning(torch_backend: Any, reference: Any, case: Case) -> None:
    row = check_case("torch", case, torch_backend, reference)
    assert row["state"] == "equal", row


@pytest.mark.parametrize("case", [case for case in CASES if case.name.endswith("at a border")], ids=str)
def test_draws_that_are_always_certain_do_not_conform(
    torch_backend: Any, reference: Any, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    draw = torch_backend.functions["draw_tokens"]

    def draw_certainly(*args: Any, **options: Any) -> Any:
        draws = draw(*args, **options).clone()
        draws[:, 1] = 1
        return draws

    monkeypatch.setattr(torch_backend, "functions", {**torch_backend.functions, "draw_tokens": draw_certainly})
    assert not case.run(reference)[0].any()
    assert check_case("torch", case, torch_backend, reference)["state"] == "differs"


@pytest.fixture(scope="module", params=["bf16", "f16"])
def narrow_torch(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Torch with narrow activations."""
    backend = open_available("torch", threads=2, dtype=request.param)
    yield backend
    backend.close()


def list_narrow_cases() -> list[Case]:
    """Return every third case of the sample, and cases in which each row has one result."""
    single = [case for case in CASES if str(case) in ("linear_silu_mul Q4_1 1x32 x1", "linear_silu_mul Q5_0 1x32 x7")]
    return [*sample_cases()[::3], *single]


@pytest.mark.parametrize("case", list_narrow_cases(), ids=str)
def test_conforms_in_narrow_numbers(narrow_torch: Any, reference: Any, case: Case) -> None:
    if not is_within_types(case, narrow_torch):
        pytest.skip("its weights or inputs are beyond the range of the type")
    row = check_case("torch", case, narrow_torch, reference)
    assert row["state"] == "equal", row


def test_has_a_function_for_every_op_of_models(torch_backend: Any) -> None:
    """For the formats of files and for exchanges between ranks the reference stands in."""
    collectives = {name for name, op in ops.ALL.items() if op.__module__.endswith(".collectives")} - {"all_reduce"}
    assert torch_backend.missing_kernels() == sorted({"dequantize_blocks", "quantize_blocks"} | collectives)


@pytest.mark.parametrize("format_name", ["F32", "F16", "Q4_1", "Q8_0"])
def test_a_decoder_is_the_same_eager_and_planned(torch_backend: Any, format_name: str) -> None:
    eager, planned = (TinyDecoder(On(torch_backend, format_name), format_name) for _ in range(2))
    plan, steps = Plan(trace(planned.forward, specs()), torch_backend), Steps()
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        found = plan.run(arrays, extents_of(arrays))
        expected = eager.forward(**{name: torch_backend.tensor(array) for name, array in arrays.items()})
        for name in OUTPUTS:
            assert np.array_equal(found[name], expected[name].numpy()), f"{name} of step {counts}"
            assert np.isfinite(found[name]).all()
    every = range(SEQUENCES * PAGES_EACH)
    assert np.array_equal(*(torch_backend.export_pages(decoder.cache, every) for decoder in (eager, planned)))
    plan.close()
    for decoder in (eager, planned):
        torch_backend.free_pages([decoder.cache])


@pytest.mark.parametrize("columns", BUCKETS.pages)
@pytest.mark.parametrize("format_name", ["F32", "F16"])
def test_a_padded_step_has_the_results_of_the_exact_one(format_name: str, columns: int) -> None:
    backends = [open_available("torch", threads=2) for _ in range(2)]
    decoders = [padded_decoder(backend, format_name) for backend in backends]
    plans = [
        Plan(trace(decoder.forward, padded_specs(width)), backend)
        for decoder, backend, width in zip(decoders, backends, (PAGES_EACH, columns), strict=True)
    ]
    for backend, decoder in zip(backends, decoders, strict=True):  # stale numbers that no row may see
        stale = np.full((DUMP_PAGE + 1, *decoder.cache.shape[1:]), np.nan, np.float32)
        backend.import_pages(decoder.cache, range(DUMP_PAGE + 1), stale)
    steps = Steps()
    for counts, rows in STEPS:
        exact = steps.step(counts, rows)
        padded, _ = pad_step(exact, BUCKETS.row_block, BUCKETS.decodes, BUCKETS.blocks, columns, DUMP_PAGE)
        expected = plans[0].run(exact, extents_of(exact))
        found = plans[1].run(on_device(backends[1], padded), extents_of(padded))
        assert np.isfinite(found["logits"][:rows]).all()
        # torch may choose other kernels for the padded shape, which add in another order; logits are up to 50 here.
        magnitude = np.abs(expected["logits"]).max()
        assert_close(found["logits"][:rows] / magnitude, expected["logits"] / magnitude, "logits")
        assert np.array_equal(found["best"][:rows], expected["best"])
    pages = [
        backend.export_pages(decoder.cache, range(DUMP_PAGE))
        for backend, decoder in zip(backends, decoders, strict=True)
    ]
    assert_close(pages[1], pages[0], "f16")
    for backend, decoder, plan in zip(backends, decoders, plans, strict=True):
        plan.close()
        backend.free_pages([decoder.cache])
        backend.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("format_name", ["F32", "Q8_0", "Q4_K Q6_K"])
def test_a_padded_step_of_every_bucket_runs_without_reading_the_device(format_name: str, dtype: str) -> None:
    """On torch's device without data: reading a value there, or mixing it with a tensor elsewhere, would raise."""
    backend = open_available("torch", device="meta", dtype=dtype)
    decoder = padded_decoder(backend, format_name)
    for columns in BUCKETS.pages:
        plan = Plan(trace(decoder.forward, padded_specs(columns)), backend)
        for decodes, blocks, outputs in product(BUCKETS.decodes[::2], BUCKETS.blocks[::2], BUCKETS.outputs):
            if decodes + blocks == 0:
                continue
            arrays = empty_step(decodes, blocks, BUCKETS.row_block, columns, outputs, DUMP_PAGE)
            found = plan.launch(on_device(backend, arrays), extents_of(arrays))
            assert {name: tuple(handle.shape) for name, handle in found.items()} == {
                "logits": (outputs, VOCAB), "best": (outputs,), "values": (outputs, 5), "ids": (outputs, 5)
            }  # fmt: skip
            assert all(handle.device.type == "meta" for handle in found.values())
        plan.close()
    with pytest.raises(BackendError, match="device 'meta' has shapes and no values"):
        backend.fetch(found["best"])
    backend.free_pages([decoder.cache])
    backend.close()


def test_an_exact_step_does_not_read_the_device_either() -> None:
    backend = open_available("torch", device="meta")
    decoder, steps = TinyDecoder(On(backend, "Q8_0"), "Q8_0"), Steps()
    plan = Plan(trace(decoder.forward, specs()), backend)
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        assert tuple(plan.launch(arrays, extents_of(arrays))["logits"].shape) == (rows, VOCAB)
    plan.close()
    backend.free_pages([decoder.cache])
    backend.close()


def test_the_cpu_keeps_exact_steps(torch_backend: Any) -> None:
    assert torch_backend.traits == HOST_TRAITS
    assert torch_backend.padded_ops == ("attention", "latent_attention", "add_lora")


def assert_like_the_meaning(torch_backend: Any, reference: Any, op: Any, values: np.ndarray, **options: Any) -> None:
    """Bit for bit, NaN at the same places."""
    results = [op(backend.tensor(values), **options) for backend in (torch_backend, reference)]
    for found, expected in zip(*(each if isinstance(each, tuple) else (each,) for each in results), strict=True):
        assert np.array_equal(found.numpy(), expected.numpy(), equal_nan=found.dtype.name == "f32")


EDGES = np.array(
    [
        [3, 3, 1, 3, 0, 2],
        [0.0, -0.0, 0.0, -0.0, 0.0, -0.0],
        [np.nan, 1, 2, np.nan, 3, 3],
        [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
        [np.inf, 1, np.inf, np.nan, -np.inf, 1],
    ],
    np.float32,
)


def test_ties_infinities_and_nan_are_picked_as_the_meanings_do(torch_backend: Any, reference: Any) -> None:
    assert_like_the_meaning(torch_backend, reference, ops.argmax, EDGES)
    for k in (1, 4, 6):
        assert_like_the_meaning(torch_backend, reference, ops.top_k, EDGES, k=k)


@pytest.mark.parametrize("activation", ["int8/32", "int8/256"])
def test_rows_are_rounded_bit_for_bit(torch_backend: Any, reference: Any, activation: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 512), np.float32)
    x[0, :40], x[1] = 0, 1e-42
    x[2] = np.round(x[2] * 16) / 2  # peak 127: the integers are the values, ties to even
    x[2, ::32] = 127
    x[3, 270], x[4, 5] = np.nan, np.inf
    found, expected = (
        ops.quantize_rows(backend.tensor(x), activation=activation).storage for backend in (torch_backend, reference)
    )
    with np.errstate(invalid="ignore"):  # infinite scales
        assert np.array_equal(found.values.numpy(), expected.dequantize(), equal_nan=True)


def test_ids_outside_the_table_give_nan_and_leave_the_others(torch_backend: Any) -> None:
    table = np.random.default_rng(0).standard_normal((33, 40), np.float32)
    weight = torch_backend.pack(StoredTensor("table", FORMATS["F32"], table.shape, table.view(np.uint8)))
    ids = np.array([3, -1, 33, 2**31 - 1, -(2**31), 32], np.int32)
    found = ops.embedding(torch_backend.tensor(ids), weight).numpy()
    assert np.isnan(found[1:5]).all()
    assert np.array_equal(found[[0, 5]], table[[3, 32]])
