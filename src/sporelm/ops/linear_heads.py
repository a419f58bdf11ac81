"""Products with one matrix per head."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_expert_matrices, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.quantize_rows import ROW_FORMATS, quantize_rows
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32


def _linear_heads_spec(x: Any, weight: Any) -> Spec:
    given, packed = check_rows("x", x), check_expert_matrices("weight", weight)
    heads, out, width = map(require_fixed, packed.shape)
    whole = require_fixed(given.shape[1]) % heads == 0 and require_fixed(given.shape[1]) >= heads * width
    require(whole, f"x {given} must be {heads} heads of {width} columns at least, as weight {packed} has")
    return Spec((given.shape[0], heads * out), F32)


@op(_linear_heads_spec)
def linear_heads(x, weight):  # x [tokens, heads * head_dim], weight [heads, out, in] -> [tokens, heads * out]
    """Multiply each head's last `in` columns by the head's own matrix. Int8 activations are rounded head by head."""
    heads, _, width = weight.shape
    given = x.reshape(len(x), heads, -1)[..., -width:]
    if weight.format.activation in ROW_FORMATS:
        given = quantize_rows.reference(np.ascontiguousarray(given), activation=weight.format.activation).dequantize()
    matrices = weight.dequantize()
    out = np.empty((heads, len(x), matrices.shape[1]), np.float32)
    for head, matrix in enumerate(matrices):
        np.matmul(given[:, head], matrix.T, out=out[head])
    return out.transpose(1, 0, 2).reshape(len(x), -1)
