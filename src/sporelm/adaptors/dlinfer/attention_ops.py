"""dlinfer's attention, and its caches of keys and values.

A paged cache is [blocks, block_size, kv_heads, head_dim], as on Ascend and MetaX, or [blocks, kv_heads, block_size,
head_dim], as on Cambricon: `block_size` or the number of heads tells which; where both are equal, the first. Slot s is
position s % block_size of block s // block_size. With `quant_bits` 8 it holds int8: round(x / scale - zero).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sporelm.adaptors import torch as ops

Masks = Sequence[Tensor | None]


# ---- caches


def fill_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_indices: Tensor,
    k_scales_zeros: Masks = (),
    v_scales_zeros: Masks = (),
    quant_bits: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """Write keys [tokens, kv_heads, head_dim] and values to slots int [tokens]; negative slots are padding. Changes the
    caches, and returns them.

    Values of another head_dim than the keys (MLA) are part of the keys: they are not written. Raises IndexError for a
    slot outside the cache.
    """
    slots = kv_indices.reshape(-1).long()
    real = slots >= 0
    if not bool(real.all()):
        slots, key, value = slots[real], key[real], value[real]
    pairs: list[tuple[Tensor, Tensor, Masks]] = [(key, key_cache, k_scales_zeros)]
    if key.shape[-1] == value.shape[-1]:
        pairs.append((value, value_cache, v_scales_zeros))
    for rows, cache, scales_zeros in pairs:
        blocks, size = view_blocks(cache, rows.shape[1])
        total = blocks.shape[0] * size
        if len(slots) and int(slots.max()) >= total:
            raise IndexError(f"fill_kv_cache: slot outside the cache (got {int(slots.max())}; it has {total})")
        if quant_bits == 8:
            rows = quantize_heads(rows, scales_zeros)
        blocks[slots // size, slots % size] = rows.to(cache.dtype)
    return key_cache, value_cache


def view_blocks(cache: Tensor, kv_heads: int, block_size: int = 0) -> tuple[Tensor, int]:
    """Return a view of a cache as [blocks, block_size, kv_heads, head_dim], and its block size."""
    if cache.dim() == 3:  # heads and head_dim are one dimension
        cache = cache.unflatten(-1, (kv_heads, -1))
    if cache.shape[2] == kv_heads and block_size in (0, cache.shape[1]):
        return cache, cache.shape[1]
    if cache.shape[1] == kv_heads:
        return cache.transpose(1, 2), cache.shape[2]
    raise ValueError(
        f"cache: heads not found (got {list(cache.shape)}; {kv_heads} heads, blocks of {block_size or 'any size'})."
        " Give [blocks, block_size, kv_heads, head_dim] or [blocks, kv_heads, block_size, head_dim]."
    )


def quantize_heads(heads: Tensor, scales_zeros: Masks) -> Tensor:
    """Return heads rounded to int8."""
    scale, zero = (_factor(each, heads) for each in (*scales_zeros, None)[:2])
    return (heads.float() / scale - (0 if zero is None else zero)).round().clamp(-128, 127).to(torch.int8)


def _factor(factor: Tensor | None, heads: Tensor) -> Any:
    """Return scales or zeros of all heads, of each head, or of each number, so that they multiply heads."""
    if factor is None:
        return None
    wide = factor.float()
    if wide.numel() == heads.shape[-1] * heads.shape[-2]:
        return wide.reshape(heads.shape[-2:])
    return wide.reshape(-1, 1) if wide.numel() == heads.shape[-2] > 1 else wide


def fill_contiguous_kvcache(
    key_cache: Tensor, value_cache: Tensor, key_state: Tensor, value_state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both caches [batch, positions, ...] with the states behind them."""
    return torch.cat((key_cache, key_state), dim=1), torch.cat((value_cache, value_state), dim=1)


def get_cache_len(cache: Tensor) -> int:
    """Return the positions of a cache [batch, positions, ...]."""
    return int(cache.shape[1])


# ---- attention of packed sequences


def prefill_attention(*args: Any, **options: Any) -> Tensor:
    """Attend within packed sequences, without a cache: query [tokens, heads, head_dim], key and value [tokens,
    kv_heads, head_dim] -> [tokens, heads, value_dim].

    Two signatures (dlinfer main, and LMDeploy 0.18):
    (query, key, value, key_cache, value_cache, q_start_loc, q_seq_len, kv_seq_len, max_q_seq_len, num_q_heads,
    num_kv_heads, attn_mask, softmax_scale=None, alibi_slopes=None, attn_output=None), or the same without q_start_loc
    and with `actual_seq_lengths_cpu`, the end of each sequence. The caches are not used.

    With a mask in `attn_mask` attention is causal; without one every row sees its whole sequence, as vision towers
    need. `attn_output`, if given, is written and returned.
    """
    names = ["query", "key", "value", "key_cache", "value_cache", "q_seq_len", "kv_seq_len", "max_q_seq_len"]
    if "q_start_loc" in options or (len(args) > 7 and isinstance(args[7], Tensor)):
        names.insert(5, "q_start_loc")
    names += ["num_q_heads", "num_kv_heads", "attn_mask", "softmax_scale", "alibi_slopes", "attn_output"]
    given = bind_arguments("prefill_attention", [*names, "actual_seq_lengths_cpu"], args, options)
    query, key, value = given["query"], given["key"], given["value"]
    ends = given.get("actual_seq_lengths_cpu")
    if ends is None:
        ends = ends_of(given.get("q_seq_len"), len(query), given.get("q_start_loc"))
    bounds = [0, *(int(end) for end in ends)]
    found = [
        attend(query[start:stop], key[start:stop], value[start:stop], given, is_causal=bool(given.get("attn_mask")))
        for start, stop in pairwise(bounds)
        if stop > start
    ]
    return write_output(torch.cat(found), query, given.get("attn_output"), bounds[-1])


def paged_prefill_attention(*args: Any, **options: Any) -> Tensor:
    """Attend from packed rows to their sequences' cached positions, causally: query [tokens, heads, head_dim] ->
    [tokens, heads, value_dim].

    Two signatures (dlinfer main, and LMDeploy 0.18):
    (query, key, value, key_cache, value_cache, block_table, block_size, q_start_loc, q_seq_len, kv_seq_len,
    cu_seq_lens_kv, max_q_seq_len, max_kv_seq_len, num_q_heads, num_kv_heads, attn_mask, head_size_v=0,
    softmax_scale=None, alibi_slopes=None, attn_output=None, kv_scales=None, kv_zeros=None, quant_bits=0), or the same
    without q_start_loc and cu_seq_lens_kv, and with the end of each sequence as `q_seq_len`.

    The rows of a sequence are the last of its kv_seq_len positions, which the cache holds already.
    """
    names = ["query", "key", "value", "key_cache", "value_cache", "block_table", "block_size"]
    is_older = "q_start_loc" in options or (len(args) > 9 and isinstance(args[9], Tensor))
    names += ["q_start_loc", "q_seq_len", "kv_seq_len", "cu_seq_lens_kv"] if is_older else ["q_seq_len", "kv_seq_len"]
    names += ["max_q_seq_len", "max_kv_seq_len", "num_q_heads", "num_kv_heads", "attn_mask", "head_size_v"]
    given = bind_arguments("paged_prefill_attention", [*names, *CACHE_OPTIONS], args, options)
    return attend_pages(given)


def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    block_size: int,
    q_seq_len: Any,
    kv_seq_len: Any,
    max_kv_seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_size_v: int | None = 0,
    softmax_scale: float | None = None,
    alibi_slopes: Any = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
) -> Tensor:
    """Attend from the last rows of each sequence to its cached positions: query [tokens, heads, head_dim] -> [tokens,
    heads, value_dim].

    block_table  int [sequences, blocks]
    q_seq_len    rows of each sequence, or the end of each; one row each if it is None
    kv_seq_len   positions of each sequence, as a tensor or a list
    kv_scales    [2] scales of keys and values, with `quant_bits` 8; kv_zeros likewise
    """
    return attend_pages(dict(locals()))


CACHE_OPTIONS = (
    "softmax_scale",
    "alibi_slopes",
    "attn_output",
    "kv_scales",
    "kv_zeros",
    "quant_bits",
)


def bind_arguments(op: str, names: Sequence[str], args: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name. Raise TypeError for too many, unknown, or repeated ones."""
    if len(args) > len(names):
        raise TypeError(f"{op}: too many arguments (got {len(args)}; allowed {len(names)}: {', '.join(names)})")
    given = dict(zip(names, args, strict=False))
    unknown = sorted(options.keys() - set(names))
    if unknown:
        raise TypeError(f"{op}: unknown arguments (got {', '.join(unknown)}; allowed {', '.join(names)})")
    if repeated := sorted(options.keys() & given.keys()):
        raise TypeError(f"{op}: arguments given twice (got {', '.join(repeated)})")
    return given | options


def to_list(lengths: Any) -> list[int]:
    """Return lengths, a tensor or a sequence, as integers."""
    return [int(each) for each in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def ends_of(lengths: Any, tokens: int, starts: Any = None) -> list[int]:
    """Return the end of each sequence's rows, from their lengths or their ends, whichever adds up to `tokens`."""
    if lengths is None:
        if starts is None:
            return list(range(1, tokens + 1))
        return [*to_list(starts)[1:], tokens]
    found = to_list(lengths)
    if sum(found) == tokens:
        return torch.tensor(found).cumsum(0).tolist()
    if found and found[-1] == tokens and found == sorted(found):
        return found
    if starts is not None and len(to_list(starts)) == len(found):
        return [*to_list(starts)[1:], tokens]
    raise ValueError(f"q_seq_len: neither lengths nor ends of {tokens} rows (got {found[:8]})")


def attend_pages(given: dict[str, Any]) -> Tensor:
    """Attend to paged caches, one sequence after the other."""
    query, key_cache, value_cache = given["query"], given["key_cache"], given["value_cache"]
    kv_heads, table = given["num_kv_heads"], given["block_table"]
    lengths = to_list(given["kv_seq_len"])
    ends = ends_of(given.get("q_seq_len"), len(query), given.get("q_start_loc"))
    keys, size = view_blocks(key_cache, kv_heads, given["block_size"])
    is_latent = key_cache.shape[-1] != value_cache.shape[-1]  # values are the first numbers of the keys
    values = keys[..., : value_cache.shape[-1]] if is_latent else view_blocks(value_cache, kv_heads, size)[0]
    found, start = [], 0
    for row, (stop, length) in enumerate(zip(ends, lengths, strict=False)):
        if stop > start:
            pages = table[row, : -(-length // size)].long()
            held = [each.index_select(0, pages).flatten(0, 1)[:length] for each in (keys, values)]
            if given.get("quant_bits") == 8:
                held = [_dequantize(each, given, half) for half, each in enumerate(held)]
            part = query[start:stop]
            found.append(attend(part, held[0].to(part.dtype), held[1].to(part.dtype), given, is_causal=True))
        start = stop
    return write_output(torch.cat(found), query, given.get("attn_output"), start)


def _dequantize(heads: Tensor, given: dict[str, Any], half: int) -> Tensor:
    """Return (q + zero) * scale of keys (half 0) or values (half 1)."""
    zeros, scales = given.get("kv_zeros"), given["kv_scales"]
    wide = heads.float()
    if zeros is not None:
        wide = wide + _factor(zeros.reshape(2, -1)[half], heads)
    return wide * _factor(scales.reshape(2, -1)[half], heads)


def attend(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any], *, is_causal: bool) -> Tensor:
    """Attend within one sequence: query [rows, heads, head_dim], key and value [keys, kv_heads, ...] -> [rows, heads,
    value_dim]. A causal row sees the keys up to its own; the rows are the last ones."""
    scale = given.get("softmax_scale") or query.shape[-1] ** -0.5
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    mask = None
    if (slopes := given.get("alibi_slopes")) is not None:
        mask = _alibi(slopes, len(query), len(key), is_causal, query)
    return ops.attention(q, k, v, mask, scale=float(scale), is_causal=is_causal)[0]


def _alibi(slopes: Any, rows: int, keys: int, is_causal: bool, like: Tensor) -> Tensor:
    """Return the numbers that ALiBi adds to scores: [1, heads, rows, keys] (Press et al. 2022)."""
    falls = torch.as_tensor(slopes, dtype=like.dtype, device=like.device).view(-1, 1, 1)
    place = torch.arange(keys, device=like.device)
    distance = place[keys - rows :].unsqueeze(1) - place
    added = -falls * distance.abs().to(like.dtype)
    return (added.masked_fill(distance < 0, -torch.inf) if is_causal else added).unsqueeze(0)


def write_output(found: Tensor, query: Tensor, output: Tensor | None, rows: int) -> Tensor:
    """Return results, written to the caller's output if it gave one; rows behind the sequences are zero."""
    if rows < len(query):
        found = torch.cat((found, found.new_zeros(len(query) - rows, *found.shape[1:])))
    if output is None:
        return found
    output.copy_(found.view(output.shape))
    return output


# ---- attention of batches


def incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    input_layout: str,
    softmax_scale: float | None = None,
) -> Tensor:
    """Attend from one row of each sequence to all keys. The result has the query's shape.

    query  [batch, 1, heads * head_dim] in layout BSH, [batch, heads, 1, head_dim] in BNSD, [batch, 1, heads, head_dim]
           in BSND
    """
    if input_layout == "BSH":
        head_dim = query.shape[-1] // num_heads
        q, k, v = (x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in (query, key, value))
    elif input_layout == "BSND":
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    elif input_layout == "BNSD":
        q, k, v = query, key, value
    else:
        raise NotImplementedError(f"incre_flash_attention: layout (got {input_layout!r}; allowed BSH, BSND, BNSD)")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    mixed = ops.attention(q, k, v, None, scale=float(scale), is_causal=False)  # [batch, rows, heads, head_dim]
    return mixed.transpose(1, 2).contiguous() if input_layout == "BNSD" else mixed.reshape(query.shape)


def fused_attention(query_states: Tensor, key_states: Tensor, value_states: Tensor, mask: Masks) -> Tensor:
    """Attend in a batch: query [batch, rows, heads, head_dim], key and value [batch, keys, kv_heads, head_dim] -> like
    query.

    mask  of each sequence [..., rows or more, keys or more]: bool, or numbers to add; none or None: causal
    """
    batch, rows, _, head_dim = query_states.shape
    keys, found = key_states.shape[1], []
    for index in range(batch):
        q, k, v = (x[index : index + 1].transpose(1, 2) for x in (query_states, key_states, value_states))
        own: Any = mask[index] if len(mask) > index else None
        if own is not None:
            own = own.reshape(1, 1, *own.shape[-2:])[..., :rows, :keys]
        found.append(ops.attention(q, k, v, own, scale=head_dim**-0.5, is_causal=True))
    return torch.cat(found)


def sequences_of(ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (sequence, first row, last row + 1)."""
    start = 0
    for index, stop in enumerate(ends):
        yield index, start, stop
        start = stop
