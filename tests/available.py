"""The back-ends that can be tested here."""

from typing import Any

import pytest

from sporelm.backends.backend_registry import OWN, open_backend
from sporelm.backends.torch_detection import has_cuda_driver
from sporelm.errors import BackendError

# Reference first. Without a driver the kernels for GPUs have tests of their own, under Triton's interpreter; those for
# OpenCL have theirs in any case: compiling them for each of thousands of shapes would take hours.
TESTED_APART = {"opencl"} if has_cuda_driver() else {"cuda", "opencl"}
BACKENDS = sorted(OWN.keys() - TESTED_APART, key=lambda name: (name != "reference", name))
# Their libraries choose the order of a product's sums by the number of rows: a row's last bits depend on its company.
ORDER_BY_ROWS = ("reference", "torch", "cuda", "opencl")


def open_available(name: str, **options: Any) -> Any:
    """Open the back-end of this name; skip the test, with the reason, where it cannot run."""
    try:
        return open_backend(name, **options)
    except BackendError as reason:
        pytest.skip(str(reason))
