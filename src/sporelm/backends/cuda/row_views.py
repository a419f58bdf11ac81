"""Rows as kernels read them: two-dimensional views with neighbouring columns."""

from torch import Tensor

MAX_INDEX = 1 << 31


def view_rows(x: Tensor) -> Tensor:
    """Return x as [rows, width] with contiguous columns: a view where that is possible, else a copy."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def view_pairs(*given: Tensor) -> list[Tensor]:
    """Return tensors of one shape for an elementwise kernel: as one row each if all are contiguous, else as rows."""
    if all(each.is_contiguous() for each in given) and given[0].numel() < MAX_INDEX:
        return [each.view(1, -1) for each in given]
    return [view_rows(each) for each in given]
