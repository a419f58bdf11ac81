"""Torch's random numbers are the same in every run."""

import pytest


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
