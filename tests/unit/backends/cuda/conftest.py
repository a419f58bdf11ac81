"""Torch under Triton's interpreter; its random numbers are the same in every run."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)


@pytest.fixture
def torch() -> Any:
    """The module torch, where Triton's interpreter runs kernels."""
    found = pytest.importorskip("torch")
    from sporelm.backends.cuda.numbers import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("needs TRITON_INTERPRET=1")
    return found
