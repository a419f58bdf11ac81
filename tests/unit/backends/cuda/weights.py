"""Random weights of the CUDA back-end on the host, for the interpreter, and empty ones, for the compiler."""

from typing import Any

import numpy as np

from sporelm.quant import FOLDER_FORMATS, FORMATS
from sporelm.quant.stored_tensor import StoredTensor


def random_stored(name: str, rows: int, width: int) -> StoredTensor:
    """Return a matrix of random blocks whose scales are finite."""
    number_format = (FORMATS | FOLDER_FORMATS)[name]
    count = rows * width // number_format.values
    blocks = np.random.default_rng(0).integers(0, 256, (count, number_format.nbytes), np.uint8)
    for offset, nbytes in number_format.words:
        blocks[:, offset + nbytes - 1] = 0x3C if nbytes == 2 else 0x3F
    if name.startswith("UINT"):
        blocks[:, 3] = 0  # of the zero points
    return StoredTensor("weight", number_format, (rows, width), blocks)


def pack(stored: StoredTensor, dtype: Any) -> Any:
    """Return a packed weight, which multiplies rows of x as they are."""
    import torch

    from sporelm.backends.cuda.cuda_weight import CudaWeight, pack_planes

    return CudaWeight(pack_planes(stored, torch.device("cpu")), stored.shape, dtype, "float")


def empty_weight(name: str, rows: int, width: int) -> Any:
    """Return a weight without values: planes of a format, or numbers of a type of torch."""
    import torch

    from sporelm.backends.cuda.cuda_weight import CudaWeight, allocate_planes
    from sporelm.backends.cuda.formats import PLANE_FORMATS

    stored: Any
    if name in PLANE_FORMATS:
        stored = allocate_planes(PLANE_FORMATS[name], rows, width, torch.device("cpu"))
    else:
        stored = torch.empty(rows, width, dtype=getattr(torch, name))
    return CudaWeight(stored, (rows, width), torch.bfloat16, "float")
