"""Embedding lookup: rows of a table of any format."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.cuda_weight import CudaWeight, dequantize_rows
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.torch.token_embedding import embedding as torch_embedding


@launches(ops.embedding)
def embedding(ids: Tensor, table: CudaWeight, *, fills: bool = False) -> Tensor:
    if isinstance(table.stored, Tensor):
        found: Tensor = torch_embedding(ids, table, fills=fills)  # type: ignore[arg-type]
        return found
    return table.restore_columns(dequantize_rows(table.stored, ids, table.dtype, fills=fills))
