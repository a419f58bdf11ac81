"""Our ops as torch custom ops: against plain torch, eager, compiled and exported."""

from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm.quant import FORMATS, dequantize_tensor, format_of, quantize_tensor

torch = pytest.importorskip("torch", reason="torch is not installed")

import sporelm.adaptors.torch as sporelm_torch  # noqa: E402
from sporelm.adaptors.torch import device_kernels  # noqa: E402
from sporelm.adaptors.torch.gated_weights import GatedWeights  # noqa: E402
from sporelm.adaptors.torch.thread_choice import host_kernels  # noqa: E402
from sporelm.errors import OpError  # noqa: E402

WRITABLE = [name for name, form in FORMATS.items() if form.can_quantize and form.name not in ("F64", "Q8_K", "Q8_1")]


def random(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def packed(weight: Any, name: str) -> Any:
    return sporelm_torch.pack(sporelm_torch.quantize(weight, name), name, weight.shape)


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [1, 5, 700])
def test_linear_is_that_of_the_dequantized_weight(name: str, rows: int) -> None:
    width = max(64, FORMATS[name].values)
    weight, bias, x = random(70, width), random(70, seed=1), random(rows, width, seed=2)
    blocks = sporelm_torch.quantize(weight, name)
    values = sporelm_torch.dequantize(blocks, name, weight.shape)
    found = sporelm_torch.linear(x, packed(weight, name), name, weight.shape, bias)
    expected = x @ values.T + bias
    # Integer products round activations to int8: 1 / 127 of the largest in a block.
    bound = 1e-5 if FORMATS[name].activation == "float" else 2e-2
    assert (found - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("name", WRITABLE)
def test_quantize_writes_the_blocks_of_files(name: str) -> None:
    width = max(64, FORMATS[name].values)
    weight = random(3, width)
    expected = quantize_tensor(format_of(name), weight.numpy()).reshape(3, -1)
    assert np.array_equal(sporelm_torch.quantize(weight, name).numpy(), expected)


@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL", "Q3_K"])
def test_the_layout_of_other_devices_holds_the_same_numbers(name: str) -> None:
    shape = (6, 2 * max(32, FORMATS[name].values))
    blocks = torch.from_numpy(quantize_tensor(format_of(name), random(*shape).numpy()).reshape(6, -1))
    stored = device_kernels.pack(blocks, name, shape)
    assert stored.numel() == device_kernels.packed_bytes(name, shape)
    found = device_kernels.unpack(stored, name, shape, torch.float32)
    assert_close(found.numpy(), dequantize_tensor(format_of(name), blocks.numpy(), shape), "f16")


def test_each_op_is_that_of_plain_torch() -> None:
    width, inner = 96, 64
    x = random(5, width)
    gate, up, down = random(inner, width), random(inner, width, seed=1), random(width, inner, seed=2)
    weights = [packed(each, "F32") for each in (gate, up, down)]
    stored = [device_kernels.pack(sporelm_torch.quantize(each, "F32"), "F32", each.shape) for each in (gate, up, down)]
    for kind in ("silu", "gelu", "gelu_tanh"):
        found = sporelm_torch.gated_mlp(x, *weights, "F32", inner, kind=kind)
        expected = device_kernels.gated_mlp(x, GatedWeights(*stored, "F32", "F32", (inner, width)), kind)
        assert_close(found.numpy(), expected.numpy(), "f32")
    norm = random(width, seed=3)
    assert_close(sporelm_torch.rms_norm(x, norm, 1e-5).numpy(), device_kernels.rms_norm(x, norm, 1e-5).numpy(), "f32")
    halves = sporelm_torch.silu_and_mul(x)
    assert_close(halves.numpy(), (torch.nn.functional.silu(x[:, :48]) * x[:, 48:]).numpy(), "f32")
    heads, cos, sin = random(2, 700, 3, 64), random(2, 700, 32, seed=4), random(2, 700, 32, seed=5)
    assert_close(sporelm_torch.rotary(heads, cos, sin).numpy(), device_kernels.rotary(heads, cos, sin).numpy(), "f32")
    part = sporelm_torch.rotary(heads, cos[..., :16], sin[..., :16])
    assert_close(part.numpy(), device_kernels.rotary(heads, cos[..., :16], sin[..., :16]).numpy(), "f32")


def test_experts_are_the_weighted_sum_of_gated_mlps() -> None:
    x, ids, weights = random(9, 64), torch.arange(18).view(9, 2) % 4, random(9, 2, seed=1).abs()
    matrices = [random(*shape, seed=seed) / 8 for seed, shape in ((2, (4, 32, 64)), (3, (4, 32, 64)), (4, (4, 64, 32)))]
    found = sporelm_torch.experts(x, *(packed(each, "F32") for each in matrices), ids, weights, "F32", (4, 32, 64))
    stored = [device_kernels.pack(sporelm_torch.quantize(each, "F32"), "F32", each.shape) for each in matrices]
    expected = device_kernels.experts(x, GatedWeights(*stored, "F32", "F32", (4, 32, 64)), ids, weights)
    assert_close(found.numpy(), expected.numpy(), "f32")


def masks(rows: int, keys: int) -> dict[str, Any]:
    place, row = torch.arange(keys), torch.arange(keys - rows, keys).unsqueeze(1)
    causal = place <= row
    padded = causal & (place >= 2)
    added = torch.zeros(rows, keys).masked_fill(~causal, torch.finfo(torch.float32).min)
    return {
        "none": None,
        "causal": causal.expand(2, 1, -1, -1),
        "window": (causal & (place > row - 3)).expand(2, 1, -1, -1),
        "left padding": torch.stack((padded | (row < 2) & (place == 0), causal)).unsqueeze(1),
        "added": added.expand(2, 1, -1, -1),
        "holes": (causal & ((place % 2 == 0) | (place == row))).expand(2, 1, -1, -1),
    }


@pytest.mark.parametrize(("rows", "keys"), [(7, 7), (1, 9), (3, 70), (150, 150)])
@pytest.mark.parametrize("kind", ["none", "causal", "window", "left padding", "added", "holes"])
def test_attention_is_that_of_plain_torch(rows: int, keys: int, kind: str) -> None:
    q, k, v = random(2, 4, rows, 32), random(2, 2, keys, 32, seed=1), random(2, 2, keys, 32, seed=2)
    mask = masks(rows, keys)[kind]
    found = sporelm_torch.attention(q, k, v, mask, scale=0.2)
    assert_close(found.numpy(), device_kernels.attention(q, k, v, mask, 0.2, True).numpy(), "f32")
    if kind == "none":
        whole = sporelm_torch.attention(q, k, v, None, scale=0.2, is_causal=False)
        assert_close(whole.numpy(), device_kernels.attention(q, k, v, None, 0.2, False).numpy(), "f32")


def test_sixteen_bit_rows_give_sixteen_bit_results() -> None:
    weight, x = random(64, 64), random(3, 64).bfloat16()
    found = sporelm_torch.linear(x, packed(weight, "F32"), "F32", weight.shape)
    assert found.dtype is torch.bfloat16
    assert_close(found.float().numpy(), (x.float() @ weight.T).bfloat16().float().numpy(), "bf16")


def test_fake_implementations_have_the_shapes_and_strides_of_results() -> None:
    from torch.library import opcheck

    weight, x = random(128, 64), random(3, 64)
    stored = packed(weight, "Q8_0")
    heads = random(1, 2, 3, 64)
    calls = {
        "quantize": (weight, "Q8_0"),
        "dequantize": (sporelm_torch.quantize(weight, "Q8_0"), "Q8_0", [128, 64]),
        "pack": (sporelm_torch.quantize(weight, "Q8_0"), "Q8_0", [128, 64]),
        "linear": (x, stored, None, "Q8_0", [128, 64]),
        "rms_norm": (x, random(64), 1e-5),
        "silu_and_mul": (x,),
        "rotary": (random(1, 3, 2, 64), random(1, 3, 32), random(1, 3, 32)),
        "attention": (heads, heads, heads, None, 0.1, True),
    }
    for name, args in calls.items():
        opcheck(getattr(torch.ops.sporelm, name).default, args, test_utils=("test_schema", "test_faketensor"))


def test_compile_and_export_trace_a_packed_layer() -> None:
    layer = torch.nn.Sequential(sporelm_torch.PackedLinear(random(96, 64), random(96, seed=1), "q8_0"), torch.nn.SiLU())
    x = random(3, 64)
    expected = layer(x)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    assert compiled(random(6, 64)).shape == (6, 96)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert "torch.ops.sporelm.linear" in exported.graph_module.code
    assert torch.equal(exported.module()(x), expected)


def test_bad_weights_are_refused_with_the_numbers() -> None:
    weight = random(8, 48)
    with pytest.raises(OpError, match="32 values per block"):
        sporelm_torch.quantize(weight, "q8_0")
    with pytest.raises(OpError, match="NaN or infinity"):
        sporelm_torch.quantize(torch.full((1, 64), torch.inf), "q8_0")
    with pytest.raises(ValueError, match="got 100 bytes"):
        sporelm_torch.linear(random(1, 64), torch.zeros(100, dtype=torch.uint8), "q8_0", (8, 64))


def test_another_number_of_threads_opens_other_kernels() -> None:
    before = sporelm_torch.get_num_threads()
    weight, x = random(64, 64), random(3, 64)
    stored = packed(weight, "Q8_0")
    expected = sporelm_torch.linear(x, stored, "Q8_0", weight.shape)
    try:
        sporelm_torch.set_num_threads(1)
        assert host_kernels().threads == 1
        assert torch.equal(sporelm_torch.linear(x, stored, "Q8_0", weight.shape), expected)
        with pytest.raises(ValueError, match="got 0"):
            sporelm_torch.set_num_threads(0)
    finally:
        sporelm_torch.set_num_threads(before)
