"""Products of FP8 weights with rows in FP8 (`--dtype fp8`): against the references, and as machine code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.api.open_device import open_device
from sporelm.backends.backend_registry import open_backend
from sporelm.errors import BackendError, UnsupportedOp
from sporelm.ops import Spec, Symbol, trace
from sporelm.ops.quantize_rows import E4M3_128
from sporelm.plan import Plan
from sporelm.quant import F8_E4M3_32, F8_E4M3_128, F8_E4M3_128_W8A8
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32
from unit.backends.cuda.compiled_kernels import SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.weights import empty_weight, pack, random_stored

FP8_CARDS = [pytest.param(card, marks=[] if card == 90 else [pytest.mark.all]) for card in (89, 90, 120)]
BF16_TOLERANCE = 3 * 2.0**-8


def draw_stored(rows: int, width: int, number_format: Any = F8_E4M3_128) -> StoredTensor:
    """Return a matrix without NaN."""
    stored = random_stored(number_format.name, rows, width)
    codes = stored.blocks[:, 4:]
    codes[(codes & 0x7F) == 0x7F] = 0
    return stored


def draw_rows(tokens: int, width: int) -> np.ndarray:
    """Return rows whose numbers differ in magnitude."""
    random = np.random.default_rng(tokens)
    factors = np.exp(2 * random.standard_normal((tokens, width), np.float32))
    return random.standard_normal((tokens, width), np.float32) * factors


def reference(x: np.ndarray, stored: StoredTensor) -> np.ndarray:
    return ops.linear.reference(x, replace(stored, format=F8_E4M3_128_W8A8))


def largest_error(found: Any, expected: np.ndarray) -> float:
    return float(np.abs(found.float().numpy() - expected).max() / np.abs(expected).max())


def test_numbers_are_within_half_a_step_of_rows() -> None:
    x = draw_rows(9, 256)
    rows = ops.quantize_rows.reference(x, activation=E4M3_128.name)
    assert rows.q.shape == (9, 256)
    assert rows.scales.shape == (9, 2)
    assert np.abs(rows.q).max() == 448
    largest = np.repeat(rows.scales * 448, 128, axis=1)
    steps = np.maximum(np.abs(x) * 2.0**-4, largest / 448 * 2.0**-10)  # half of a step: three bits of fraction
    assert (np.abs(rows.dequantize() - x) <= steps * (1 + 1e-5)).all()


@pytest.mark.parametrize("tokens", [2, 7])
def test_rows_are_rounded_as_the_reference_does(torch: Any, tokens: int) -> None:
    from sporelm.backends.cuda.fp8_rows import Fp8Rows
    from sporelm.backends.cuda.quantize_rows import quantize_rows
    from sporelm.backends.torch.quantize_rows import quantize_rows as plain

    x = draw_rows(tokens, 1280)
    x[0, :128], x[0, 128:256], x[1, 5] = 0, 1e-39, np.nan
    x[1, 128:256] = np.arange(128) * 0.5  # ties
    expected = ops.quantize_rows.reference(x, activation=E4M3_128.name).dequantize()
    found = quantize_rows(torch.from_numpy(x), activation=E4M3_128.name)
    assert isinstance(found, Fp8Rows) == (tokens > 2)
    assert np.array_equal(found.values.numpy(), expected, equal_nan=True)
    values = plain(torch.from_numpy(x), activation=E4M3_128.name).values
    assert np.array_equal(values.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(("tokens", "rows", "width"), [(1, 40, 256), (3, 200, 384), (17, 9, 1280), (66, 130, 256)])
def test_products_are_those_of_rounded_rows(torch: Any, tokens: int, rows: int, width: int) -> None:
    from sporelm.backends.cuda.quantized_linear import linear, linear_silu_mul

    stored, x = draw_stored(rows, width), draw_rows(tokens, width)
    weight, other = (pack(stored, torch.float32) for _ in range(2))
    weight.activation = other.activation = E4M3_128.name
    bias = draw_rows(1, rows)[0]
    expected = reference(x, stored)
    assert largest_error(linear(torch.from_numpy(x), weight, torch.from_numpy(bias)), expected + bias) < 1e-5
    gated = ops.silu_mul.reference(expected, expected)
    assert largest_error(linear_silu_mul(torch.from_numpy(x), weight, other), gated) < 1e-5


def test_rows_do_not_depend_on_other_rows_in_invariant_steps(torch: Any) -> None:
    from sporelm.backends.cuda.quantized_linear import linear
    from sporelm.backends.torch.step_context import STEP

    weight = pack(draw_stored(70, 1536), torch.float32)
    weight.activation = E4M3_128.name
    x = torch.from_numpy(draw_rows(70, 1536))
    with STEP.begin(1, True):
        whole = linear(x, weight)
        for tokens in (1, 20):
            part = linear(x[:tokens].contiguous(), weight)
            # numpy multiplies the tiles of interpreted kernels: on some CPUs its sums depend on a row's place in them.
            assert torch.allclose(part, whole[:tokens], rtol=0, atol=1e-6 * float(whole.abs().max()))


def test_a_plan_rounds_rows_once_for_all_their_products(torch: Any) -> None:
    backend = open_available("cuda", dtype="fp8")
    stored = [draw_stored(rows, 256) for rows in (24, 8, 8)]
    weights = [backend.pack(each) for each in stored]
    assert {weight.dtype for weight in weights} == {F8_E4M3_128_W8A8}
    assert backend.pack(draw_stored(8, 96, F8_E4M3_32)).dtype is F8_E4M3_32
    specs = {"x": Spec((Symbol("tokens", 64), 256), F32)}

    def forward(x: Any) -> dict[str, Any]:
        return {str(number): ops.linear(x, weight) for number, weight in enumerate(weights)}

    plan = Plan(trace(forward, specs), backend)
    assert [call.op.name for call in plan.graph.calls] == ["quantize_rows", "linear_group"]
    for tokens in (1, 5):
        x = draw_rows(tokens, 256)
        found = plan.run({"x": x}, {"tokens": tokens})
        for number, each in enumerate(stored):
            expected = reference(x, each)
            eager = ops.linear(backend.tensor(x), weights[number]).numpy()
            for values in (found[str(number)], eager):
                assert np.abs(values - expected).max() <= BF16_TOLERANCE * np.abs(expected).max()
    plan.close()
    backend.close()


def test_other_backends_refuse_rows_in_fp8() -> None:
    with pytest.raises(BackendError, match="got dtype fp8"):
        open_device("cpu", "cpu", 1, "fp8")
    cpu = open_available("cpu", threads=1)
    with pytest.raises(UnsupportedOp, match="not supported by cpu"):
        ops.quantize_rows(cpu.tensor(draw_rows(2, 128)), activation=E4M3_128.name)
    cpu.close()
    with pytest.raises(BackendError, match=r"not supported by torch \(got 'fp8'"):
        open_backend("torch", dtype="fp8")


# ---- machine code


@pytest.mark.parametrize("card", FP8_CARDS)
@pytest.mark.parametrize("tokens", [pytest.param(16, marks=pytest.mark.all), 64, 4096])
def test_tiles_use_fp8_tensor_cores(tokens: int, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import linear

    weight = empty_weight("F8_E4M3_128", 14336, 4096)
    weight.activation = E4M3_128.name
    x = torch.empty(tokens, 4096, dtype=torch.bfloat16)
    rounding, product = record_launches(lambda: linear(x, weight))
    assert compile_launch(rounding, card).stack_bytes == 0
    code = compile_launch(product, card)
    products = code.instructions("QGMMA") if card == 90 else code.instructions("QMMA")
    assert products
    assert all("E4M3.E4M3" in each for each in products)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert any("128" in each.split()[0] for each in code.instructions("LDGSTS"))
