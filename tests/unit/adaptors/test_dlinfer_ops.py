"""dlinfer's ops by name: against formulas written out in numpy or torch, in both signatures where there are two."""

import math
from typing import Any

import numpy as np
import pytest

from close import assert_close

torch = pytest.importorskip("torch", reason="torch is not installed")

from sporelm.adaptors import dlinfer  # noqa: E402

BLOCK = 16


def random(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def check(found: Any, expected: Any, dtype: str = "f32") -> None:
    assert_close(found.detach().numpy(), expected.detach().numpy(), dtype)


def normalize(x: Any, weight: Any, eps: float) -> Any:
    return x / (x * x).mean(-1, keepdim=True).add(eps).sqrt() * weight


def attend(q: Any, k: Any, v: Any, scale: float, *, causal: bool, added: Any = None) -> Any:
    """Attention of one sequence by its formula: [rows, heads, dim], float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if added is not None:
        scores = scores + added
    if causal:
        rows, keys = len(q), len(k)
        seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).float()


def test_names_are_those_of_dlinfer_and_lmdeploy() -> None:
    assert len(dlinfer.OPS) == 26
    assert set(dlinfer.OPS) <= set(dir(dlinfer))


def test_norms_and_activations() -> None:
    x, residual, weight = random(5, 96), random(5, 96, seed=1), random(96, seed=2)
    check(dlinfer.rms_norm(x, weight, 1e-6), normalize(x, weight, 1e-6))
    normed, total = dlinfer.add_rms_norm(x, residual, weight, 1e-6)
    check(total, x + residual)
    check(normed, normalize(x + residual, weight, 1e-6))
    silu = torch.nn.functional.silu
    check(dlinfer.silu_and_mul(x), silu(x[:, :48]) * x[:, 48:])
    check(dlinfer.silu_and_mul(x.T, 0), silu(x.T[:48]) * x.T[48:])


@pytest.mark.parametrize("rotary", [64, 32])
def test_rotary_embeddings_change_their_arguments(rotary: int) -> None:
    q, k, angles = random(7, 4, 64), random(7, 2, 64, seed=1), random(7, rotary // 2, seed=2)
    cos, sin = (torch.cat((each, each), dim=-1) for each in (angles.cos(), angles.sin()))

    def rotate(x: Any) -> Any:
        part, rest = x[..., :rotary], x[..., rotary:]
        halves = torch.cat((-part[..., rotary // 2 :], part[..., : rotary // 2]), dim=-1)
        return torch.cat((part * cos.unsqueeze(1) + halves * sin.unsqueeze(1), rest), dim=-1)

    expected = rotate(q), rotate(k)
    given = q.clone(), k.clone()
    found = dlinfer.apply_rotary_pos_emb(*given, cos, sin)
    for each, result, wanted in zip(given, found, expected, strict=True):
        check(result, wanted)
        assert result is each
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)[torch.arange(6, -1, -1)]
    older = dlinfer.apply_rotary_pos_emb(q.clone(), k.clone(), None, None, torch.arange(6, -1, -1), table)
    check(older[0], expected[0])
    with pytest.raises(ValueError, match="more than head_dim 64"):
        dlinfer.apply_rotary_pos_emb(q, k, torch.zeros(7, 128), torch.zeros(7, 128))


def test_interleaved_rotary_embeddings_turn_pairs() -> None:
    x, angles = random(5, 3, 1, 16), random(5, 1, 1, 8, seed=1)
    cos, sin = (torch.cat((each, each), dim=-1) for each in (angles.cos(), angles.sin()))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angles)
    pairs = dlinfer.apply_rotary_pos_emb_interleaved(x, cos, sin, False)
    check(pairs, torch.view_as_real(turned).flatten(-2))
    check(dlinfer.apply_rotary_pos_emb_interleaved(x, cos, sin), torch.cat((turned.real, turned.imag), dim=-1))


class Batch:
    """Three sequences with rows and cached positions, in paged caches of 32 blocks in a scattered order."""

    def __init__(self, rows: tuple[int, ...], lengths: tuple[int, ...], value_dim: int = 32, heads_first: bool = False):
        self.rows, self.lengths = rows, lengths
        self.q = random(sum(rows), 4, 32)
        self.keys = [random(length, 2, 32, seed=1 + i) for i, length in enumerate(lengths)]
        self.values = [random(length, 2, value_dim, seed=9 + i) for i, length in enumerate(lengths)]
        order = np.random.default_rng(5).permutation(32)
        self.table = torch.from_numpy(order[:24].reshape(3, 8).astype(np.int32))
        shape = (32, 2, BLOCK) if heads_first else (32, BLOCK, 2)
        self.key_cache, self.value_cache = torch.zeros(*shape, 32), torch.zeros(*shape, value_dim)
        self.ends = np.cumsum(rows).tolist()

    def slots(self, sequence: int) -> Any:
        place = torch.arange(self.lengths[sequence])
        return self.table[sequence][place // BLOCK] * BLOCK + place % BLOCK

    def fill(self, **options: Any) -> "Batch":
        for index, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            slots = torch.cat((self.slots(index), torch.tensor([-1])))  # -1: padding of a captured graph
            padded = (torch.cat((each, each[:1] * torch.nan)) for each in (keys, values))
            dlinfer.fill_kv_cache(*padded, self.key_cache, self.value_cache, slots, **options)
        return self

    def expected(self, *, causal: bool = True, scale: float = 32**-0.5) -> Any:
        starts = [0, *self.ends]
        parts = zip(starts, self.ends, self.keys, self.values, strict=False)
        return torch.cat([attend(self.q[a:b], k, v, scale, causal=causal) for a, b, k, v in parts])


@pytest.mark.parametrize("heads_first", [False, True])
def test_caches_hold_what_was_filled_in(heads_first: bool) -> None:
    batch = Batch((1, 1, 1), (40, 3, 17), heads_first=heads_first).fill()
    cache = batch.key_cache.transpose(1, 2) if heads_first else batch.key_cache
    for index, keys in enumerate(batch.keys):
        slots = batch.slots(index)
        check(cache[slots // BLOCK, slots % BLOCK], keys)
    with pytest.raises(IndexError, match="got 512; it has 512"):
        dlinfer.fill_kv_cache(
            batch.keys[1][:1], batch.values[1][:1], batch.key_cache, batch.value_cache, torch.tensor([512])
        )


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("ends", [True, False])
def test_decoding_attends_to_pages(heads_first: bool, ends: bool) -> None:
    batch = Batch((1, 1, 1), (40, 3, 17), heads_first=heads_first).fill()
    out = torch.full_like(batch.q, torch.nan)
    found = dlinfer.paged_decode_attention(
        *(batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK),
        *(torch.tensor(batch.ends if ends else batch.rows), torch.tensor(batch.lengths), 40, 4, 2),
        attn_output=out,
    )
    check(found, batch.expected())
    assert found is out


def test_decoding_of_several_rows_and_lengths_as_lists() -> None:
    batch = Batch((2, 2, 2), (40, 3, 17)).fill()
    for counts in (batch.ends, list(batch.rows)):
        found = dlinfer.paged_decode_attention(
            batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK, counts, list(batch.lengths), 40, 4, 2
        )
        check(found, batch.expected())


def test_prefill_attends_to_pages_in_both_signatures() -> None:
    batch = Batch((5, 3, 9), (40, 3, 17)).fill()
    start = torch.tensor([0, *batch.ends[:-1]])
    rows, lengths, mask = torch.tensor(batch.rows), torch.tensor(batch.lengths), [torch.ones(4, 4, dtype=torch.bool)]
    caches = (batch.q, batch.q, batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK)
    older = dlinfer.paged_prefill_attention(*caches, start, rows, lengths, lengths.cumsum(0), 9, 40, 4, 2, mask)
    check(older, batch.expected())
    newer = dlinfer.paged_prefill_attention(
        *caches, torch.tensor(batch.ends), lengths, 9, 40, 4, 2, mask, head_size_v=32, softmax_scale=0.3
    )
    check(newer, batch.expected(scale=0.3))
    with pytest.raises(TypeError, match="unknown arguments"):
        dlinfer.paged_prefill_attention(*caches, batch.ends, batch.lengths, 9, 40, 4, 2, mask, window=4)


def test_prefill_without_a_cache_in_both_signatures() -> None:
    batch = Batch((5, 3, 9), (5, 3, 9))
    key, value = torch.cat(batch.keys), torch.cat(batch.values)
    rows, start, mask = torch.tensor(batch.rows), torch.tensor([0, 5, 8]), [torch.ones(9, 9)]
    older = dlinfer.prefill_attention(batch.q, key, value, None, None, start, rows, rows, 9, 4, 2, mask)
    check(older, batch.expected())
    out = torch.empty_like(batch.q)
    newer = dlinfer.prefill_attention(
        *(batch.q, key, value, None, None, rows, rows, 9, 4, 2),
        attn_mask=[],
        softmax_scale=0.3,
        attn_output=out,
        actual_seq_lengths_cpu=torch.tensor(batch.ends),
    )
    check(newer, batch.expected(causal=False, scale=0.3))
    slopes = [0.5, 0.25, 0.125, 0.0625]
    biased = dlinfer.prefill_attention(batch.q, key, value, None, None, start, rows, rows, 9, 4, 2, mask, None, slopes)
    place = torch.arange(5)
    added = -torch.tensor(slopes).view(-1, 1, 1) * (place.unsqueeze(1) - place).abs()
    check(biased[:5], attend(batch.q[:5], key[:5], value[:5], 32**-0.5, causal=True, added=added))


def test_eight_bit_caches() -> None:
    batch = Batch((1, 1, 1), (40, 3, 17))
    batch.key_cache, batch.value_cache = (each.to(torch.int8) for each in (batch.key_cache, batch.value_cache))
    scales, zeros = torch.tensor([0.03, 0.04]), torch.tensor([3.0, -2.0])
    batch.fill(k_scales_zeros=[scales[:1], zeros[:1]], v_scales_zeros=[scales[1:], zeros[1:]], quant_bits=8)
    found = dlinfer.paged_decode_attention(
        *(batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK, None, batch.lengths, 40, 4, 2),
        kv_scales=scales,
        kv_zeros=zeros,
        quant_bits=8,
    )
    for half, parts in enumerate((batch.keys, batch.values)):
        for index, each in enumerate(parts):
            rounded = (each / scales[half] - zeros[half]).round().clamp(-128, 127)
            parts[index] = (rounded + zeros[half]) * scales[half]
    check(found, batch.expected())


def test_latent_values_are_the_first_numbers_of_the_keys() -> None:
    batch = Batch((1, 1, 1), (40, 3, 17), value_dim=24).fill()
    batch.values = [keys[..., :24] for keys in batch.keys]
    found = dlinfer.paged_decode_attention(
        batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK, None, batch.lengths, 40, 4, 2, head_size_v=24
    )
    check(found, batch.expected())


def test_attention_of_batches() -> None:
    q, k, v = random(2, 1, 4, 32), random(2, 9, 2, 32, seed=1), random(2, 9, 2, 32, seed=2)
    expected = torch.stack([attend(q[i], k[i], v[i], 0.3, causal=False) for i in range(2)])
    check(dlinfer.incre_flash_attention(q, k, v, 4, "BSND", 0.3), expected)
    flat = dlinfer.incre_flash_attention(q.flatten(2), k.flatten(2), v.flatten(2), 4, "BSH", 0.3)
    check(flat, expected.flatten(2))
    turned = dlinfer.incre_flash_attention(*(x.transpose(1, 2) for x in (q, k, v)), 4, "BNSD", 0.3)
    check(turned, expected.transpose(1, 2))
    with pytest.raises(NotImplementedError, match="got 'SH'"):
        dlinfer.incre_flash_attention(q, k, v, 4, "SH")
    rows = random(2, 9, 4, 32)
    mask = torch.zeros(9, 9).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), torch.finfo(torch.float32).min)
    causal = torch.stack([attend(rows[i], k[i], v[i], 32**-0.5, causal=True) for i in range(2)])
    check(dlinfer.fused_attention(rows, k, v, [mask, mask]), causal)
    check(dlinfer.fused_attention(rows, k, v, []), causal)
    keys, values = dlinfer.fill_contiguous_kvcache(k, v, k[:, :1], v[:, :1])
    assert dlinfer.get_cache_len(keys) == 10
    check(values[:, 9:], v[:, :1])


def test_products_with_four_and_eight_bit_weights() -> None:
    x, bias = random(3, 64), random(24, seed=1)
    whole = torch.randint(-8, 8, (64, 24), generator=torch.Generator().manual_seed(0))
    packed = torch.zeros(64, 3, dtype=torch.int64)
    for index in range(8):
        packed |= (whole[:, index::8] & 15) << (4 * index)
    packed = packed.to(torch.int32) if packed.max() < 2**31 else (packed - (packed >> 31 << 32)).to(torch.int32)
    scale, offset = random(2, 24, seed=2).abs(), random(2, 24, seed=3)
    weight = (whole + offset.repeat_interleave(32, 0)) * scale.repeat_interleave(32, 0)
    found = dlinfer.weight_quant_matmul(x, packed, scale, offset, bias, group_size=32)
    check(found, (x.double() @ weight.double() + bias).float(), "f16")
    eight = dlinfer.weight_quant_matmul(x, whole.to(torch.int8), scale[0])
    check(eight, (x.double() @ (whole * scale[0]).double()).float(), "f16")


def test_dynamic_quantization_and_its_products() -> None:
    x, weight = random(3, 96), torch.randint(-127, 128, (24, 96), dtype=torch.int8)
    rounded, scale = dlinfer.dynamic_quant(x, torch.int8)
    assert rounded.dtype is torch.int8
    check(scale, x.abs().amax(-1) / 127)
    assert (rounded.float() * scale.unsqueeze(1) - x).abs().max() <= scale.max() / 2 + 1e-6
    linear_scale, bias = random(24, 1, seed=1).abs() / 64, random(24, seed=2)
    found = dlinfer.linear_w8a8(rounded, weight, scale, linear_scale, torch.float32, torch.int8, bias)
    exact = rounded.double() @ weight.double().T
    check(found, (exact * scale.unsqueeze(1) * linear_scale.T + bias).float(), "f16")
    for op, args in ((dlinfer.rms_norm_w8a8, (x,)), (dlinfer.add_rms_norm_w8a8, (x, x))):
        results = op(*args, torch.ones(96), 1e-6, torch.int8)
        normed = normalize(sum(args), torch.ones(96), 1e-6)
        assert (results[0].float() * results[1].unsqueeze(1) - normed).abs().max() <= results[1].max()
    check(dlinfer.add_rms_norm_w8a8(x, x, torch.ones(96), 1e-6, torch.int8)[2], 2 * x)
    with pytest.raises(NotImplementedError, match="PER_TENSOR"):
        dlinfer.dynamic_quant(x, torch.int8, "PER_TENSOR")


def test_static_quantization_undoes_its_offset() -> None:
    x, weight = random(3, 32), torch.randint(-127, 128, (8, 32), dtype=torch.int8)
    input_scale, offset, deq = torch.tensor([0.05]), torch.tensor([7.0]), random(8).abs() / 64
    quant_bias = (-7 * weight.int().sum(1)).int()
    rounded = (x / input_scale + offset).round().clamp(-128, 127)
    expected = ((rounded.double() @ weight.double().T) + quant_bias) * deq
    args = (x, weight, input_scale, offset)
    found = dlinfer.linear_w8a8_static(*args, deq, torch.float32, torch.int8, quant_bias)
    check(found, expected.float(), "f16")
    bits = deq.view(torch.int32).to(torch.int64)
    assert torch.equal(dlinfer.linear_w8a8_static(*args, bits, torch.float32, torch.int8, quant_bias), found)


def test_linear_reads_the_nz_layout() -> None:
    x, weight, bias = random(3, 64), random(48, 64, seed=1), random(48, seed=2)
    check(dlinfer.linear(x, weight, bias), x @ weight.T + bias)
    blocks = dlinfer.transdata(weight.half())
    assert blocks.shape == (1, 4, 48, 16)
    check(dlinfer.linear(x, blocks.float()), x @ weight.half().float().T)
    assert dlinfer.transdata(torch.zeros(2, 5, 40, dtype=torch.int8)).shape == (2, 2, 16, 32)


def test_experts() -> None:
    x, gate_up, down = random(9, 32), random(6, 32, 32, seed=1) / 8, random(6, 32, 16, seed=2) / 8
    metadata = dlinfer.MoeMetadata()
    logits = random(9, 6, seed=3)
    weights, ids = dlinfer.moe_gating_topk_softmax(logits, 2, metadata)
    check(weights, logits.softmax(-1).topk(2).values)
    assert torch.equal(ids, logits.topk(2).indices)

    def expected(renormalize: bool) -> Any:
        total = torch.zeros_like(x)
        for row in range(9):
            factors = weights[row] / weights[row].sum() if renormalize else weights[row]
            for factor, expert in zip(factors, ids[row], strict=True):
                gate, up = (gate_up[expert] @ x[row]).chunk(2)
                total[row] += factor * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        return total

    for renormalize in (False, True):
        found = dlinfer.fused_moe(x, gate_up, down, weights, ids, 2, renormalize, metadata)
        check(found, expected(renormalize), "f16")
    rounded = [dlinfer.dynamic_quant(each, torch.int8) for each in (gate_up, down)]
    (w1, s1), (w2, s2) = rounded
    quantized = dlinfer.fused_moe_w8a8(x, w1, s1, w2, s2.unsqueeze(-1), weights, ids, 2, True, metadata)
    plain = expected(True)
    assert (quantized - plain).abs().max() <= 0.03 * plain.abs().max()
    metadata.router_n_groups = 2
    _, grouped = dlinfer.moe_gating_topk_softmax(logits, 2, metadata)
    assert torch.equal(grouped, torch.stack((logits[:, :3].argmax(1), 3 + logits[:, 3:].argmax(1)), dim=1))
    with pytest.raises(NotImplementedError, match="got ep_size 2"):
        dlinfer.fused_moe(x, gate_up, down, weights, ids, 2, True, dlinfer.MoeMetadata(ep_size=2))


def test_sparse_attention_of_all_positions_is_latent_attention() -> None:
    rows, lengths = (1, 5), (20, 5)
    cache, rope_cache = random(8, BLOCK, 1, 32), random(8, BLOCK, 1, 8, seed=1)
    table = torch.tensor([[3, 1], [7, 0]], dtype=torch.int32)
    q, q_rope = random(6, 4, 32, seed=2), random(6, 4, 8, seed=3)
    ends = torch.tensor([1, 6])
    weights = random(6, 4, seed=4).abs()
    indices = dlinfer.lightning_indexer(q, cache, weights, ends, torch.tensor(lengths), table, 32)
    assert indices.shape == (6, 1, 32)
    assert sorted(indices[0, 0, :20].tolist()) == list(range(20))
    assert (indices[0, 0, 20:] == -1).all()
    assert sorted(indices[1, 0][indices[1, 0] >= 0].tolist()) == [0]  # causal: its own position only
    found = dlinfer.sparse_flash_attention(
        *(q, cache, cache, indices, 0.2),
        block_table=table,
        actual_seq_lengths_query=ends,
        kv_seqlens=torch.tensor(lengths),
        query_rope=q_rope,
        key_rope=rope_cache,
    )
    start = 0
    for index, (count, length) in enumerate(zip(rows, lengths, strict=True)):
        held, ropes = (each[table[index].long()].flatten(0, 1)[:length] for each in (cache, rope_cache))
        whole = torch.cat((q, q_rope), -1)[start : start + count]
        expected = attend(whole, torch.cat((held, ropes), -1), held, 0.2, causal=True)
        check(found[start : start + count], expected)
        start += count
    few = dlinfer.lightning_indexer(q, cache, weights, ends, torch.tensor(lengths), table, 2)
    scores = (torch.einsum("hd,kd->hk", q[0], cache[table[0].long()].flatten(0, 1)[:20, 0]).relu().T * weights[0]).sum(
        1
    )
    assert few[0, 0].tolist() == scores.topk(2).indices.tolist()


def test_math_defaults_to_the_root_of_the_head_dim() -> None:
    batch = Batch((1, 1, 1), (4, 3, 7)).fill()
    found = dlinfer.paged_decode_attention(
        batch.q, batch.key_cache, batch.value_cache, batch.table, BLOCK, None, batch.lengths, 7, 4, 2
    )
    check(found, batch.expected(scale=1 / math.sqrt(32)))
