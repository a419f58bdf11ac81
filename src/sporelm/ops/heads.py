"""Products with a matrix for each head."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import expert_matrices, rows
from sporelm.ops.linear import ROW_FORMATS, quantize_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32


def _product(x: Any, weight: Any) -> Spec:
    given, packed = rows("x", x), expert_matrices("weight", weight)
    heads, out, width = map(fixed, packed.shape)
    whole = fixed(given.shape[1]) % heads == 0 and fixed(given.shape[1]) >= heads * width
    require(whole, f"x {given} must be {heads} heads of {width} columns at least, as weight {packed} has")
    return Spec((given.shape[0], heads * out), F32)


@op(_product)
def linear_heads(x, weight):  # x [tokens, heads * head_dim], weight [heads, out, in] -> [tokens, heads * out]
    """Each head's last `in` columns times its own matrix. Where that multiplies int8, they are rounded head by head."""
    heads, _, width = weight.shape
    given = x.reshape(len(x), heads, -1)[..., -width:]
    if weight.format.activation in ROW_FORMATS:
        given = quantize_rows.meaning(np.ascontiguousarray(given), activation=weight.format.activation).dequantize()
    matrices = weight.dequantize()
    out = np.empty((heads, len(x), matrices.shape[1]), np.float32)
    for head, matrix in enumerate(matrices):
        np.matmul(given[:, head], matrix.T, out=out[head])
    return out.transpose(1, 0, 2).reshape(len(x), -1)
