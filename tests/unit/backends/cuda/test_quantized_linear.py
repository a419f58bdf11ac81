"""Products of packed weights: splits and joined rows under the interpreter, and machine code of five cards."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import (
    SHARED_BYTES,
    compile_launch,
    on_each_card,
    record_launches,
    require_compiler,
)
from unit.backends.cuda.weights import empty_weight, pack, random_stored

# Instructions of a thread for each weight, with what a program does once. The loop on sm_90 has 5 for Q4_0, and 6.7 for
# Q4_K.
MAX_INSTRUCTIONS = {"Q4_0": 7, "Q4_K": 9.5, "Q8_0": 8.5}


def random_rows(torch: Any, tokens: int, width: int) -> Any:
    return torch.from_numpy(np.random.default_rng(tokens).standard_normal((tokens, width), np.float32))


def largest_error(found: Any, expected: Any) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", ["Q4_K", "UINT8_128"])
@pytest.mark.parametrize("tokens", [2, 20])
def test_split_columns_are_added_up(torch: Any, name: str, tokens: int) -> None:
    from sporelm.backends.cuda.quantized_linear import linear

    stored = random_stored(name, 5, 8192)
    x, bias = random_rows(torch, tokens, 8192), random_rows(torch, 1, 5)[0]
    expected = x.double() @ torch.from_numpy(stored.dequantize()).double().T + bias
    assert largest_error(linear(x, pack(stored, torch.float32), bias), expected) < 1e-6


@pytest.mark.parametrize("name", ["Q4_K", "F32"])
def test_rows_do_not_depend_on_other_rows_in_invariant_steps(torch: Any, name: str) -> None:
    from sporelm.backends.cuda.cuda_weight import CudaWeight
    from sporelm.backends.cuda.quantized_linear import linear
    from sporelm.backends.torch.step_context import STEP

    stored = random_stored("Q4_K", 9, 2048)
    weight = pack(stored, torch.float32)
    if name == "F32":
        weight = CudaWeight(weight.values, weight.shape, torch.float32, "float")
    x = random_rows(torch, 40, 2048)
    with STEP.begin(1, True):
        whole = linear(x, weight)
        for tokens in (1, 17):
            assert torch.equal(linear(x[:tokens].contiguous(), weight), whole[:tokens])


def test_weights_of_one_x_are_joined_at_their_first_use(torch: Any) -> None:
    from sporelm.backends.cuda.quantized_linear import linear, linear_group

    weights = tuple(pack(random_stored("Q4_0", rows, 256), torch.float32) for rows in (7, 33, 5))
    values = [weight.values for weight in weights]
    x = random_rows(torch, 2, 256)
    for found, weight in zip(linear_group(x, weights), values, strict=True):
        assert largest_error(found, x @ weight.T) < 1e-5
    assert weights[0].joined is weights[2].joined is not None
    assert weights[1].stored.codes.data_ptr() == weights[0].joined.stored.codes[7:].data_ptr()
    for weight, before in zip(weights, values, strict=True):
        assert torch.equal(weight.values, before)
    assert largest_error(linear(x, weights[1]), x @ values[1].T) < 1e-5
    pair = linear_group(x, (weights[2], weights[0]))  # joined with others: each by itself
    assert largest_error(pair[0], x @ values[2].T) < 1e-5


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "softplus"])
def test_gates_are_applied_to_products(torch: Any, kind: str) -> None:
    from sporelm.backends.cuda.quantized_linear import linear_activate_mul
    from sporelm.backends.torch.activation import activate_mul

    gate, up = (pack(random_stored("Q8_0", 20, 4096), torch.float32) for _ in range(2))
    x = random_rows(torch, 2, 4096) * 0.01
    expected = activate_mul(x @ gate.values.T, x @ up.values.T, kind=kind)
    assert largest_error(linear_activate_mul(x, gate, up, kind=kind), expected) < 1e-5


def test_columns_in_another_order_stay_packed(torch: Any) -> None:
    from sporelm.backends.cuda import CudaBackend
    from sporelm.backends.cuda.cuda_weight import Planes
    from sporelm.backends.cuda.quantized_linear import linear, linear_silu_mul
    from sporelm.backends.cuda.token_embedding import embedding
    from sporelm.backends.torch.activation import activate_mul

    backend = CudaBackend(dtype="f32")
    backend.probe()
    generator = np.random.default_rng(0)
    stored = [
        replace(random_stored("UINT4_32", 20, 256), order=generator.permutation(256).astype(np.int32)) for _ in range(2)
    ]
    gate, up = (backend.pack(each).storage for each in stored)
    assert isinstance(gate.stored, Planes)
    gate.activation = up.activation = "float"
    values = [torch.from_numpy(each.dequantize()) for each in stored]
    assert torch.equal(gate.values, values[0])
    rows = torch.tensor([[3], [1]])
    assert torch.equal(gate.select(rows), values[0][rows])
    assert torch.equal(embedding(rows[0], gate), values[0][rows[0]])
    for tokens in (2, 20):
        x = random_rows(torch, tokens, 256) * 0.01
        assert largest_error(linear(x, up), x @ values[1].T) < 1e-5
        expected = activate_mul(x @ values[0].T, x @ values[1].T, kind="silu")
        assert largest_error(linear_silu_mul(x, gate, up), expected) < 1e-5


# ---- machine code


@pytest.mark.parametrize(
    ("name", "card"),
    [*on_each_card("Q4_0"), *on_each_card("Q4_K"), *on_each_card("bfloat16"), ("Q6_K", 90), ("Q8_0", 90)],
)
def test_few_tokens_read_weights_16_bytes_at_once(name: str, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import linear

    x, weight = torch.empty(1, 4096, dtype=torch.bfloat16), empty_weight(name, 14336, 4096)
    [launch] = record_launches(lambda: linear(x, weight))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= 1 << 10  # for the last sums only
    assert code.registers <= 168
    wide = [each for each in code.instructions("LDG.E") if "128" in each.split()[0]]
    assert len(wide) >= launch.options["ROWS"], code.instructions("LDG")
    if name in MAX_INSTRUCTIONS:
        weights = len(wide) * (16 if name == "Q8_0" else 32)
        assert code.sass.count(";") / weights <= MAX_INSTRUCTIONS[name]


@pytest.mark.parametrize(
    ("name", "card"),
    [("IQ2_XXS", 90), ("IQ3_S", 86)]
    + [pytest.param(*each, marks=pytest.mark.all) for each in (("IQ1_M", 80), ("IQ2_XS", 90), ("IQ3_XXS", 120))],
)
def test_few_tokens_look_up_vectors(name: str, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import linear

    x, weight = torch.empty(1, 4096, dtype=torch.bfloat16), empty_weight(name, 14336, 4096)
    [launch] = record_launches(lambda: linear(x, weight))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= 1 << 10
    assert code.registers <= (255 if name == "IQ2_XS" else 168)
    weights = 64 * launch.options["ROWS"]  # of a thread
    assert code.sass.count(";") / weights <= 11
    loads = len(code.instructions("LDG"))  # with 16 of x, and 8 of scales for each row
    vectors = weights // (4 if name.startswith("IQ3") else 8)
    assert loads <= vectors + 16 + 12 * launch.options["ROWS"]


@pytest.mark.parametrize(
    ("name", "tokens", "card"),
    [("Q4_K", 128, 86), *on_each_card("Q4_0", 16), *on_each_card("bfloat16", 128)],
)
def test_tiles_use_tensor_cores(name: str, tokens: int, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import run_gemm

    x, weight = torch.empty(tokens, 4096, dtype=torch.bfloat16), empty_weight(name, 4096, 4096)
    launches = record_launches(lambda: run_gemm(x, weight.stored, 4096))
    code = compile_launch(launches[0], card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 255
    assert code.uses_tensor_cores
    assert any("128" in each.split()[0] for each in code.instructions("LDG") + code.instructions("LDGSTS"))


@pytest.mark.parametrize(
    ("name", "tokens", "card"),
    [("Q1_0", 2, 90)]
    + [pytest.param(*each, marks=pytest.mark.all) for each in (("Q1_0", 1, 90), ("IQ4_XS", 2, 86), ("NF4", 2, 86))],
)
def test_gates_of_few_tokens_use_no_stack(name: str, tokens: int, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import linear_silu_mul

    x = torch.empty(tokens, 4096, dtype=torch.bfloat16)
    gate, up = (empty_weight(name, 14336, 4096) for _ in range(2))
    [launch] = record_launches(lambda: linear_silu_mul(x, gate, up))
    assert compile_launch(launch, card).stack_bytes == 0


@pytest.mark.parametrize("card", [90])
def test_gates_and_splits_fit(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantized_linear import linear, linear_silu_mul

    x, small = torch.empty(2, 4096, dtype=torch.bfloat16), empty_weight("float16", 128, 4096)
    gate, up = (empty_weight("Q4_K", 14336, 4096) for _ in range(2))
    launches = record_launches(lambda: (linear(x, small), linear_silu_mul(x, gate, up)))
    names = [launch.kernel.fn.__name__ for launch in launches]
    assert names == ["float_gemv_kernel", "add_splits_kernel", "gemv_kernel"]
    for launch in launches:
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.registers <= 255
