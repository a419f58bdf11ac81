"""Our ops under the name `dlinfer`, and LMDeploy's own call sites on them."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vendor_wheels import unpack_wheel

torch = pytest.importorskip("torch", reason="torch is not installed")

from sporelm.adaptors import dlinfer  # noqa: E402

LMDEPLOY = "lmdeploy==0.18.0"


def random(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def check(found: Any, expected: Any) -> None:
    """Compare within 1e-4 of the largest number, which is the bar for LMDeploy's call sites."""
    scale = max(float(expected.abs().max()), 1e-6)
    assert float((found - expected).abs().max()) <= 1e-4 * scale


@pytest.fixture(name="installed")
def _installed() -> Iterator[ModuleType]:
    yield dlinfer.install()
    dlinfer.uninstall()


def test_install_registers_the_modules_that_programs_import(installed: ModuleType) -> None:
    import dlinfer.framework.lmdeploy_ext
    import dlinfer.ops as ops
    from dlinfer.utils.type_annotation import MoECommType, MoeMetadata
    from dlinfer.vendor import vendor_name

    assert vendor_name == "sporelm"
    assert MoeMetadata().moe_comm_type is MoECommType.UNDEFINED
    assert sys.modules["dlinfer"] is installed
    assert all(hasattr(ops, name) for name in ops.__all__)
    assert dlinfer.ops is ops


def test_another_dlinfer_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dlinfer", ModuleType("dlinfer"))
    with pytest.raises(ImportError, match="another package of this name is imported"):
        dlinfer.install()
    dlinfer.uninstall()
    assert "dlinfer" in sys.modules


@pytest.fixture(name="kernels")
def _kernels(installed: ModuleType) -> Iterator[Any]:
    """LMDeploy's call sites, from its wheel, without its packages' `__init__`."""
    root = unpack_wheel(LMDEPLOY, (".py",))
    names = ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels")
    for name in names:
        package = ModuleType(name)
        package.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[name] = package
    default = ModuleType("lmdeploy.pytorch.kernels.default")  # sampling and calibration, which call no op of dlinfer
    default.multinomial_sampling = default.per_channel_quant = None  # type: ignore[attr-defined]
    sys.modules[default.__name__] = default
    yield lambda name: importlib.import_module(f"lmdeploy.pytorch.kernels.dlinfer.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lmdeploy"]:
        del sys.modules[name]


def attend(q: Any, k: Any, v: Any, scale: float, causal: bool = True) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double()).float()


@pytest.mark.all
def test_lmdeploys_rows_and_products(kernels: Any) -> None:
    x, residual, weight = random(1, 5, 64), random(1, 5, 64, seed=1), random(64, seed=2)

    def norm(x: Any) -> Any:
        return x / (x * x).mean(-1, keepdim=True).add(1e-6).sqrt() * weight

    rms_norm = kernels("rms_norm").rms_norm
    check(rms_norm(x, weight, 1e-6), norm(x))
    out = torch.empty_like(x)
    assert rms_norm(x, weight, 1e-6, out=out) is out
    normed, total = rms_norm(x, weight, 1e-6, residual=residual)
    check(normed, norm(x + residual))
    check(total, x + residual)
    silu = torch.nn.functional.silu
    check(kernels("activation").silu_and_mul(x), silu(x[..., :32]) * x[..., 32:])
    matrix, bias = random(48, 64, seed=3), random(48, seed=4)
    check(kernels("linear").linear(x, matrix, bias), x @ matrix.T + bias)
    w8a8 = kernels("w8a8_kernels")
    rounded, scale = w8a8.dynamic_quant(x, torch.int8)
    eight = torch.randint(-127, 128, (48, 64), dtype=torch.int8)
    factors = random(48, 1, seed=5).abs() / 64
    found = w8a8.linear_w8a8(rounded, eight, scale, factors, torch.float32, torch.int8, bias)
    check(found, (rounded.double() @ eight.double().T * scale.unsqueeze(-1) * factors.T + bias).float())
    integers, scales, sums = w8a8.rms_norm_w8a8(x, weight, 1e-6, torch.int8, residual)
    check(sums, x + residual)
    assert (integers.float() * scales.unsqueeze(-1) - norm(x + residual)).abs().max() <= scales.max()
    assert len(w8a8.rms_norm_w8a8(x, weight, 1e-6)) == 2
    static = w8a8.linear_w8a8_static(
        x, eight, torch.tensor(0.05), torch.tensor(0.0), factors.flatten(), torch.float32, torch.int8
    )
    exact = (x / 0.05).round().clamp(-128, 127).double() @ eight.double().T * factors.T
    check(static, exact.float())
    packed = torch.randint(-(2**31), 2**31 - 1, (64, 6), dtype=torch.int32)
    scale4, zeros = random(2, 48, seed=6).abs(), random(2, 48, seed=7)
    nibbles = torch.stack([((packed >> 4 * index) & 15 ^ 8) - 8 for index in range(8)], dim=-1).flatten(1)
    dense = (nibbles + zeros.repeat_interleave(32, 0)) * scale4.repeat_interleave(32, 0)
    found = kernels("awq_kernels").awq_linear(x, packed, scale4, zeros, bias, group_size=32)
    check(found, (x.double() @ dense.double() + bias).float())


@pytest.mark.all
def test_lmdeploys_rotary_embeddings(kernels: Any) -> None:
    q, k, angles = random(1, 5, 4, 32), random(1, 5, 2, 32, seed=1), random(5, 16, seed=2)
    cos, sin = (torch.cat((each, each), dim=-1) for each in (angles.cos(), angles.sin()))

    def rotate(x: Any) -> Any:
        halves = torch.cat((-x[..., 16:], x[..., :16]), dim=-1)
        return x * cos.unsqueeze(-2) + halves * sin.unsqueeze(-2)

    rope = kernels("apply_rotary_pos_emb")
    expected = rotate(q), rotate(k)
    for outs in ((None, None), (torch.empty_like(q), torch.empty_like(k))):
        found = rope.apply_rotary_pos_emb(q.clone(), k.clone(), cos, sin, *outs)
        for each, wanted in zip(found, expected, strict=True):
            check(each, wanted)
    own = q.clone(), k.clone()
    found = rope.apply_rotary_pos_emb(*own, cos, sin, *own)  # LMDeploy reads its arguments as the results here
    check(found[0], expected[0])
    frequencies = 10000 ** -(torch.arange(16) / 16)
    positions = torch.arange(5).unsqueeze(0)
    turned = positions[0].unsqueeze(-1) * frequencies
    cos, sin = (torch.cat((each, each), dim=-1) for each in (turned.cos(), turned.sin()))
    fused = kernels("fused_rotary_emb").fused_rotary_emb(q.clone(), k.clone(), positions, frequencies, 1.0)
    check(fused[0], rotate(q))
    check(fused[1], rotate(k))
    pairs = rope.apply_rotary_pos_emb_interleaved(q, k, cos, sin, None, None, return_native_layout=False)
    complex_q = torch.view_as_complex(q.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones(()), turned
    ).unsqueeze(-2)
    check(pairs[0], torch.view_as_real(complex_q).flatten(-2))
    native = rope.apply_rotary_pos_emb_interleaved(q, k, cos, sin, None, None)
    check(native[0], torch.cat((complex_q.real, complex_q.imag), dim=-1))


@pytest.mark.all
def test_lmdeploys_attention(kernels: Any) -> None:
    block, lengths, rows = 16, [20, 5, 33], [4, 5, 2]
    table = torch.randperm(24, generator=torch.Generator().manual_seed(0)).reshape(3, 8).int()
    keys = [random(each, 2, 32, seed=index) for index, each in enumerate(lengths)]
    values = [random(each, 2, 32, seed=9 + index) for index, each in enumerate(lengths)]
    caches = torch.zeros(24, block, 2, 32), torch.zeros(24, block, 2, 32)
    fill = kernels("fill_kv_cache").fill_kv_cache
    for index, length in enumerate(lengths):
        place = torch.arange(length)
        fill(keys[index], values[index], *caches, table[index][place // block] * block + place % block, (), ())
    attention = kernels("pagedattention").paged_attention_fwd

    def run(counts: list[int], **options: Any) -> Any:
        q = random(sum(counts), 4, 32, seed=20)
        ends = torch.tensor([0, *np.cumsum(counts)])
        packed = (torch.cat([x[-n:] for x, n in zip(each, counts, strict=True)]) for each in (keys, values))
        held = torch.tensor(lengths)
        found = attention(
            *(q, *packed, q.clone(), *caches, table, torch.tensor(counts), held, max(counts), max(lengths)),
            is_decoding=max(counts) == 1,
            block_size=block,
            num_heads=4,
            num_kv_heads=2,
            v_head_size=32,
            softmax_scale=0.2,
            cu_seqlens_q=ends,
            cu_seqlens_q_cpu=ends,
            kv_seqlens_cpu=held,
            **options,
        )
        return q, ends.tolist(), found

    mask = [torch.ones(64, 64, dtype=torch.bool).triu(1)]
    for counts, options in (
        (rows, {"attn_mask": mask, "is_prefill_no_cache": False}),
        ([1, 1, 1], {}),
        (lengths, {"attn_mask": mask, "is_prefill_no_cache": True}),
    ):
        q, ends, found = run(counts, **options)
        parts = [attend(q[ends[i] : ends[i + 1]], keys[i], values[i], 0.2) for i in range(3)]
        check(found, torch.cat(parts))
    q = random(sum(lengths), 4, 32, seed=30)
    starts, counts = torch.tensor([0, 20, 25]), torch.tensor(lengths)
    flash = kernels("flash_attention").flash_attention_fwd
    out = torch.empty_like(q)
    packed = torch.cat(keys), torch.cat(values)
    found = flash(q, *packed, out, starts, counts, starts, counts, 4, 2, max_q_seqlen=33, sm_scale=0.2)
    parts = [attend(part, keys[i], values[i], 0.2, False) for i, part in enumerate(q.split(lengths))]
    check(found, torch.cat(parts))


@pytest.mark.all
def test_lmdeploys_sparse_attention(kernels: Any) -> None:
    block, lengths = 16, [20, 5]
    table = torch.tensor([[3, 1], [7, 0]], dtype=torch.int32)
    latent, ropes = random(8, block, 1, 32), random(8, block, 1, 8, seed=1)
    q, weights = random(6, 4, 40, seed=2), random(6, 4, seed=3).abs()
    ends, held = torch.tensor([1, 6]), torch.tensor(lengths)
    indices = kernels("lightning_indexer").lightning_indexer(
        q[..., :32].contiguous(), latent, weights, ends, held, table, 32
    )
    out = torch.empty(6, 4, 32)
    found = kernels("sparse_attention").sparse_attention_fwd(
        q, ropes, latent, indices.squeeze(1), table, ends, held, 32, 0.2, out
    )
    assert found is out
    start = 0
    for index, stop in enumerate(ends.tolist()):
        own = table[index].long()
        keys = torch.cat((latent[own], ropes[own]), -1).flatten(0, 1)[: lengths[index]]
        check(found[start:stop], attend(q[start:stop], keys, keys[..., :32], 0.2))
        start = stop


@pytest.mark.all
def test_lmdeploys_experts(kernels: Any) -> None:
    moe = kernels("fused_moe")
    metadata = moe.DlinferMoeMetadata()
    x, gate_up, down = random(9, 32), random(6, 32, 32, seed=1) / 8, random(6, 32, 16, seed=2) / 8
    logits = random(9, 6, seed=3)
    weights, ids = kernels("moe_gating_topk_softmax").moe_gating_topk_softmax(logits, 2, metadata)
    check(weights, logits.softmax(-1).topk(2).values)
    weights = weights / weights.sum(-1, keepdim=True)

    def expected(gate_up: Any, down: Any) -> Any:
        total = torch.zeros_like(x)
        for row in range(9):
            for factor, expert in zip(weights[row], ids[row], strict=True):
                gate, up = (gate_up[expert] @ x[row]).chunk(2)
                total[row] += factor * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        return total

    check(moe.fused_moe(x, gate_up, down, weights, ids, 2, True, metadata), expected(gate_up, down))
    (w1, s1), (w2, s2) = (dlinfer.dynamic_quant(each, torch.int8) for each in (gate_up, down))
    quantized = moe.fused_moe_w8a8(x, w1, s1, w2, s2, weights, ids, 2, True, metadata)
    plain = expected(w1 * s1.unsqueeze(-1), w2 * s2.unsqueeze(-1))
    assert (quantized - plain).abs().max() <= 0.03 * plain.abs().max()  # activations are rounded to int8, too
