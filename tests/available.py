"""The back-ends that can be tested here."""

from typing import Any

import pytest

from sporelm.backends.backend_registry import OWN, open_backend
from sporelm.errors import BackendError

BACKENDS = sorted(OWN, key=lambda name: (name != "reference", name))  # reference first
# Their libraries choose the order of a product's sums by the number of rows: a row's last bits depend on its company.
ORDER_BY_ROWS = ("reference", "torch")


def open_available(name: str, **options: Any) -> Any:
    """Open the back-end of this name; skip the test, with the reason, where it cannot run."""
    try:
        return open_backend(name, **options)
    except BackendError as reason:
        pytest.skip(str(reason))
