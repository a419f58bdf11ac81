"""torch_npu's fused operators on the CPU, by the formulas of its documentation: what calls of ours mean, if the
documentation is right. The schemas are torch_npu 2.13's; `test_torch_npu_wheel.py` compares them with its wheel.

Each operator also checks the limits that the documentation gives for what we pass: types, layouts, contiguity, blocks.
"""

import re
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sporelm.backends.vendor.ascend import TABLE, AscendBackend

NARROW = (torch.float16, torch.bfloat16)
ATTENTION_SCHEMA = (
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None,"
    " Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None,"
    " Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None,"
    " Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None,"
    " Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None,"
    " Tensor? value_antiquant_offset=None, Tensor? block_table=None, Tensor? query_padding_size=None,"
    " Tensor? kv_padding_size=None, Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None,"
    " SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None,"
    " Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, int pre_tokens=2147483647,"
    ' int next_tokens=2147483647, str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0,'
    " int inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0,"
    " int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
)
LATENT_SCHEMA = (
    "npu_fused_infer_attention_score_v2(Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, "
    "Tensor? key_rope=None, Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_qlen=None, "
    "SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None, Tensor? dequant_scale_query=None, "
    "Tensor? dequant_scale_key=None, Tensor? dequant_offset_key=None, Tensor? dequant_scale_value=None, "
    "Tensor? dequant_offset_value=None, Tensor? dequant_scale_key_rope=None, Tensor? quant_scale_out=None, "
    "Tensor? quant_offset_out=None, Tensor? quant_scale_p=None, Tensor? learnable_sink=None, "
    "int num_query_heads=1, int num_key_value_heads=0, float softmax_scale=1.0, int pre_tokens=2147483647, "
    'int next_tokens=2147483647, str input_layout="BSH", int sparse_mode=0, int block_size=0, '
    "int query_quant_mode=0, int key_quant_mode=0, int value_quant_mode=0, int inner_precise=0, "
    "bool return_softmax_lse=False, int? query_dtype=None, int? key_dtype=None, int? value_dtype=None, "
    "int? query_rope_dtype=None, int? key_rope_dtype=None, int? key_shared_prefix_dtype=None, "
    "int? value_shared_prefix_dtype=None, int? dequant_scale_query_dtype=None, "
    "int? dequant_scale_key_dtype=None, int? dequant_scale_value_dtype=None, "
    "int? dequant_scale_key_rope_dtype=None, int? out_dtype=None) -> (Tensor, Tensor)"
)
SCHEMAS = (
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor",
    "npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)",
    ATTENTION_SCHEMA,
    LATENT_SCHEMA,
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)",
    (
        "npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None,"
        " Tensor[]? offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None,"
        " Tensor[]? per_token_scale=None, Tensor? group_list=None, Tensor[]? activation_input=None,"
        " Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None, int? split_item=0,"
        " int? group_type=None, int? group_list_type=0, int? act_type=0, int[]? tuning_config=None,"
        " int? output_dtype=None, int? x_dtype=None, int? weight_dtype=None, int? scale_dtype=None,"
        " int? per_token_scale_dtype=None) -> Tensor[]"
    ),
    (
        "npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale, Tensor? antiquant_offset=None,"
        " Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? bias=None, int antiquant_group_size=0,"
        " int inner_precise=0, int? weight_dtype=None) -> Tensor"
    ),
)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    assert x.dtype == gamma.dtype, "one type for x and gamma"
    wide = x.float()
    rstd = wide.square().mean(-1, keepdim=True).add(epsilon).rsqrt()
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    total = x1 + x2
    normed, rstd = rms_norm(total, gamma, epsilon)
    return normed, rstd, total


def rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    assert x.dim() == r1.dim() == r2.dim() == 4, "four dimensions"
    assert x.dtype == r1.dtype == r2.dtype, "one type"
    assert x.shape[3] < 896, "D < 896"
    assert x.shape[3] % 2 == 0, "D is even"
    assert x.shape[2] < 1000, "N < 1000"
    assert r1.shape == (1, x.shape[1], 1, x.shape[3]), "layout 1S1D"
    if rotary_mode == "half":
        left, right = x.chunk(2, -1)
        turned = torch.cat((-right, left), -1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return r1 * x + r2 * turned


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    left, right = x.chunk(2, dim)
    return torch.nn.functional.silu(left) * right


def scatter_nd_update_(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    assert indices.dim() == 2, "indices of two dimensions"
    assert indices.shape[1] == 1, "indices of one number"
    assert x.dtype == updates.dtype, "one type"
    assert updates.shape == (len(indices), *x.shape[1:])
    assert int(indices.max()) < len(x), "indices in range"
    assert int(indices.min()) >= 0, "indices in range"
    x[indices[:, 0].long()] = updates
    return x


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    rope_heads: tuple[int, ...] = (32, 64, 128),
    **others: Any,
) -> tuple[Tensor, Tensor]:
    assert not {name for name, given in others.items() if given not in (None, False, 0, 2147483647)}
    for each in (query, key, value, query_rope, key_rope):
        assert each is None or each.is_contiguous(), "contiguous"
        assert each is None or each.dtype == query.dtype in NARROW, "one type, f16 or bf16"
    assert key.shape == value.shape
    rank = value.shape[-1]
    if query_rope is not None:
        assert key_rope is not None
        check_ropes(query, key, query_rope, key_rope, input_layout, sparse_mode, block_table, block_size, rope_heads)
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    if input_layout == "BSND":
        assert block_table is None, "pages of heads need layout BNSD or TND"
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    else:
        assert input_layout == "BNSD"
    batch, heads, rows, head_dim = query.shape
    assert heads == num_heads <= 256
    assert head_dim % 16 == 0
    assert rank <= 512
    if block_table is not None:
        assert block_table.dtype is torch.int32
        assert block_table.shape[0] == batch
        assert actual_seq_lengths_kv is not None, "with pages, lengths must be given"
        if rows == 1:
            assert 0 < block_size <= 512, "incremental attention: up to 512"
            assert block_size % 16 == 0, "incremental attention: multiples of 16"
        else:
            assert block_size % 128 == 0, "prompt attention: multiples of 128"
        assert key.shape[1:] == (num_key_value_heads, block_size, head_dim), "(blocks, KV_N, block size, D)"
        table = block_table.clamp(0, len(key) - 1).long()
        key, value = (x[table].transpose(1, 2).flatten(2, 3) for x in (key, value))
    else:
        assert key.shape[1] == num_key_value_heads
    if sparse_mode == 0 and atten_mask is not None:
        assert rows == 1
        assert atten_mask.dtype is torch.bool
        assert atten_mask.shape == (batch, 1, rows, key.shape[2]), "(B, 1, Q_S, KV_S)"
    out = query.new_zeros(batch, heads, rows, rank)
    for index in range(batch):
        length = key.shape[2] if actual_seq_lengths_kv is None else actual_seq_lengths_kv[index]
        assert length <= key.shape[2]
        real = rows if actual_seq_lengths is None or rows == 1 else actual_seq_lengths[index]
        k, v = (x[index, :, :length].repeat_interleave(heads // x.shape[1], 0).float() for x in (key, value))
        scores = query[index, :, :real].float() @ k.transpose(1, 2) * scale
        if sparse_mode in (3, 4) and rows > 1:
            assert atten_mask is not None, "a mask of 2048 x 2048"
            assert atten_mask.shape == (2048, 2048), "a mask of 2048 x 2048"
            assert bool(atten_mask[0, 1]), "true above the diagonal"
            assert not bool(atten_mask[1, 0]), "false below the diagonal"
            past = torch.arange(length) - torch.arange(length - real, length)[:, None]
            seen = past <= (0 if sparse_mode == 3 else next_tokens)
            if sparse_mode == 4:
                assert pre_tokens >= 0
                seen &= past >= -pre_tokens
            scores = scores.masked_fill(~seen, -torch.inf)
        elif atten_mask is not None:
            scores = scores.masked_fill(atten_mask[index, :, :, :length], -torch.inf)
        out[index, :, :real] = (scores.softmax(-1) @ v).to(query.dtype)
    if input_layout == "BSND":
        out = out.transpose(1, 2).contiguous()
    return out, torch.zeros(0)


def check_ropes(
    query: Tensor,
    key: Tensor,
    query_rope: Tensor,
    key_rope: Tensor,
    layout: str,
    sparse_mode: int,
    block_table: Tensor | None,
    block_size: int,
    rope_heads: tuple[int, ...],
) -> None:
    """Check the limits of latent attention, where rotated keys come apart."""
    assert query.shape[:-1] == query_rope.shape[:-1]
    assert key.shape[:-1] == key_rope.shape[:-1]
    assert query.shape[-1] == key.shape[-1] == 512
    assert query_rope.shape[-1] == key_rope.shape[-1] == 64
    if sparse_mode == 4:
        assert layout == "BSND"
        assert query.shape[2] == 128
        assert key.shape[1] <= 131088
        assert key.shape[2] == 1
        return
    assert layout == "BNSD"
    assert query.shape[1] in rope_heads
    assert 1 <= query.shape[2] <= 16
    assert sparse_mode == (0 if query.shape[2] == 1 else 3)
    assert block_table is not None
    assert block_size in (16, 128)
    assert key.shape[1] == 1


def attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    num_query_heads: int = 1,
    softmax_scale: float = 1.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    modes = ("query_quant_mode", "key_quant_mode", "value_quant_mode")
    given = {name: value for name, value in options.items() if name not in modes and value is not None}
    return dispatch_attention(
        query,
        key,
        value,
        actual_seq_lengths=actual_seq_qlen,
        actual_seq_lengths_kv=actual_seq_kvlen,
        num_heads=num_query_heads,
        scale=softmax_scale,
        rope_heads=(1, 2, 4, 8, 16, 32, 64, 128),
        **given,
    )


def gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    assert 0 < k <= min(1024, x.shape[1])
    found = x.softmax(-1).sort(dim=-1, descending=True, stable=True)
    rows = torch.arange(len(x)).unsqueeze(1) + torch.arange(k) * len(x)
    return found.values[:, :k].contiguous(), found.indices[:, :k].int(), rows.int()


def grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    group_list: Tensor | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    **others: Any,
) -> list[Tensor]:
    assert not {name for name, given in others.items() if given not in (None, 0)}
    assert (split_item, group_type, group_list_type) == (2, 0, 0), "rows in groups, their ends, one result"
    assert group_list is not None, "ends"
    assert group_list.dtype is torch.int64, "ends are int64"
    assert 1 < len(group_list) <= 1024, "up to 1024 groups"
    (rows,), (matrices,) = x, weight
    assert rows.dtype == matrices.dtype, "one type"
    assert int(group_list[-1]) == len(rows)
    ends = [0, *group_list.tolist()]
    out = rows.new_empty(len(rows), matrices.shape[2])
    for expert, (start, stop) in enumerate(pairwise(ends)):
        out[start:stop] = rows[start:stop] @ matrices[expert]
    return [out]


def weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    assert x.dtype in NARROW
    assert weight.dtype is torch.int8
    assert antiquant_scale.dtype == x.dtype
    assert 32 <= antiquant_group_size < len(weight), "from 32 to K - 1"
    assert antiquant_group_size % 32 == 0, "multiples of 32"
    assert antiquant_scale.shape == (-(-len(weight) // antiquant_group_size), weight.shape[1])
    wide = weight.float() * antiquant_scale.float().repeat_interleave(antiquant_group_size, 0)[: len(weight)]
    return (x.float() @ wide).to(x.dtype)


attend_by: list[Any] = []  # the last one stands in for `attention`, if there is one


def dispatch_attention(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return (attend_by[-1] if attend_by else attention)(*args, **options)


FUNCTIONS = {
    "npu_rms_norm": rms_norm,
    "npu_add_rms_norm": add_rms_norm,
    "npu_rotary_mul": rotary_mul,
    "npu_swiglu": swiglu,
    "npu_scatter_nd_update_": scatter_nd_update_,
    "npu_fused_infer_attention_score": dispatch_attention,
    "npu_fused_infer_attention_score_v2": attention_v2,
    "npu_moe_gating_top_k_softmax": gating_top_k_softmax,
    "npu_grouped_matmul": grouped_matmul,
    "npu_weight_quant_batchmatmul": weight_quant_batchmatmul,
}
_LIBRARIES: list[Any] = []


def install() -> None:
    """Register the operators for the CPU. They stay until the process ends."""
    if _LIBRARIES:
        return
    library = torch.library.Library("npu", "FRAGMENT")
    for schema in SCHEMAS:
        name = re.match(r"\w+", schema)
        assert name
        if not hasattr(torch.ops.npu, name[0]):
            library.define(schema)
        library.impl(name[0], FUNCTIONS[name[0]], "CPU")
    _LIBRARIES.append(library)


class EmulatedAscend(AscendBackend):
    """The Ascend back-end on the CPU, with these operators."""

    name = "emulated-ascend"
    kind = "cpu"
    extension = ""
    table = TABLE
