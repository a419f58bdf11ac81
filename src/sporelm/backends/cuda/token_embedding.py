"""Embedding lookup: rows of a table of any format."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.cuda_weight import CudaWeight, dequantize_rows
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.torch.token_embedding import embedding as torch_embedding


@launches(ops.embedding)
def embedding(ids: Tensor, table: CudaWeight, *, fills: bool = False, first: int | None = None) -> Tensor:
    if isinstance(table.stored, Tensor):
        found: Tensor = torch_embedding(ids, table, fills=fills, first=first)  # type: ignore[arg-type]
        return found
    ids = ids - (first or 0)
    rows = table.restore_columns(dequantize_rows(table.stored, ids, table.dtype, fills=fills))
    if first is not None:
        rows.masked_fill_(((ids < 0) | (ids >= table.shape[0])).unsqueeze(1), 0)
    return rows
