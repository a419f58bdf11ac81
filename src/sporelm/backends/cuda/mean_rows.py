"""Mean pooling: the rows of a text are added up in order, so that texts do not affect each other."""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.row_views import view_rows

BLOCK = 128  # columns of a program
AHEAD = 8  # rows that are read before they are added up


@triton.jit
def mean_rows_kernel(x, bounds, out, stride, texts, width, blocks, AHEAD: tl.constexpr, BLOCK: tl.constexpr):
    """Write BLOCK columns of the mean of a text's rows."""
    text = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first, stop = tl.load(bounds + text), tl.load(bounds + texts + text)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(first, stop, AHEAD):
        for step in tl.static_range(AHEAD):
            row = start + step
            total += load_wide(x + row.to(tl.int64) * stride + column, inside & (row < stop))
    tl.store(out + text.to(tl.int64) * width + column, tl.div_rn(total, (stop - first).to(tl.float32)), mask=inside)


@launches(ops.mean_rows)
def mean_rows(x: Tensor, firsts: Any, stops: Any) -> Tensor:
    """Return the mean of the rows of each text. The bounds are numpy arrays."""
    given, texts = view_rows(x), len(firsts)
    width = given.shape[1]
    bounds = torch.from_numpy(np.stack([firsts, stops]).astype(np.int32)).to(x.device)
    out = torch.empty(texts, width, dtype=torch.float32, device=x.device)
    blocks = triton.cdiv(width, BLOCK)
    launch(
        mean_rows_kernel,
        (texts * blocks,),
        *(given, bounds, out, given.stride(0), texts, width, blocks),
        AHEAD=AHEAD,
        BLOCK=BLOCK,
        num_warps=BLOCK // 32,
    )
    return out
